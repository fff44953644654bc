"""The one writer to the launcher's own stdout and stderr.

Whole lines go out under one lock, so that no rank tears another's. A progress bar is a line without
an end: on a terminal its current state stays the last line of the screen, below everything that is
written meanwhile; elsewhere only its last state appears, when its line ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal, TextIO

from tfdist.launcher.lines import fit

Stream = Literal["stdout", "stderr"]

_CLEAR_LINE = b"\r\x1b[K"
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@dataclass
class _Sink:
    file: BinaryIO
    terminal: bool
    closed: bool = False


class Console:
    """Writes for all ranks and for the launcher itself.

    Args:
        labels: what the lines of each rank start with, in brackets; None leaves the lines alone.
        on_closed: called once when nobody reads the output any more (`tfdist run ... | head`).
    """

    def __init__(self, labels: Sequence[str | None], on_closed: Callable[[], None]) -> None:
        self._sinks: dict[Stream, _Sink] = {
            "stdout": _open_sink(sys.stdout),
            "stderr": _open_sink(sys.stderr),
        }
        self._prefixes = {
            stream: _prefixes(labels, sink.terminal) for stream, sink in self._sinks.items()
        }
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._bar: tuple[int, Stream, bytes] | None = None  # whose progress bar, and its state

    def is_terminal(self, stream: Stream) -> bool:
        """Whether a person watches this stream, so that a line may be rewritten."""
        return self._sinks[stream].terminal

    def emit(
        self, rank: int, stream: Stream, lines: Sequence[bytes], progress: bytes | None = None
    ) -> None:
        """Writes the finished lines of a rank, and shows its unfinished one.

        Args:
            rank: the writer.
            stream: which of its two streams.
            lines: without newlines.
            progress: the current state of a line that is still being rewritten; None unless the
                stream `is_terminal`.
        """
        prefix = self._prefixes[stream][rank]
        data = b"".join(b"%s%s\n" % (prefix, line) for line in lines)
        with self._lock:
            bar = self._bar
            if progress is not None:
                bar = (rank, stream, prefix + progress)
            elif bar is not None and bar[:2] == (rank, stream):
                bar = None
            self._write(stream, data, bar)

    def say(self, text: str) -> None:
        """Writes lines of the launcher itself to stderr, even if the output is stuck."""
        data = "".join(f"[tfdist] {line}\n" for line in text.splitlines()).encode()
        # A pager that does not read must not keep the launcher from ending the job.
        if self._lock.acquire(timeout=1.0):
            try:
                self._write("stderr", data, self._bar)
            finally:
                self._lock.release()

    def _write(self, stream: Stream, data: bytes, bar: tuple[int, Stream, bytes] | None) -> None:
        """Writes data; takes the bar from the screen before, and puts it back after."""
        shown, self._bar = self._bar, bar
        if data or bar != shown:
            if shown is not None:
                self._put(shown[1], _CLEAR_LINE)
            self._put(stream, data)
            if bar is not None:
                columns = shutil.get_terminal_size().columns - 1
                self._put(bar[1], fit(bar[2].decode("utf-8", "ignore"), columns).encode())

    def _put(self, stream: Stream, data: bytes) -> None:
        sink = self._sinks[stream]
        if sink.closed or not data:
            return
        try:
            sink.file.write(data)
            sink.file.flush()
        except (OSError, ValueError):  # a closed pipe, a terminal that has gone
            sink.closed = True
            # Python flushes at exit: what is left must have somewhere to go.
            _discard(sink.file)
            self._on_closed()


def _open_sink(file: TextIO) -> _Sink:
    file.flush()
    descriptor = file.fileno()
    # Another program on the same terminal may have left it non-blocking; then writes would fail.
    os.set_blocking(descriptor, True)
    return _Sink(file.buffer, os.isatty(descriptor) and os.environ.get("TERM") != "dumb")


def _discard(file: BinaryIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, file.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(nowhere)


def _prefixes(labels: Sequence[str | None], terminal: bool) -> list[bytes]:
    plain_prefixes = ["" if label is None else f"[{label}] " for label in labels]
    if not terminal or not any(plain_prefixes):
        return [prefix.encode() for prefix in plain_prefixes]
    # Only here: rich costs more to import than all the rest of the launcher.
    from rich.console import Console as RichConsole
    from rich.text import Text

    console = RichConsole(force_terminal=True)  # it knows NO_COLOR and what the terminal can do
    coloured = []
    for rank, prefix in enumerate(plain_prefixes):
        with console.capture() as captured:
            console.print(Text(prefix, style=_COLOURS[rank % len(_COLOURS)]), end="")
        coloured.append(captured.get().encode())
    return coloured
