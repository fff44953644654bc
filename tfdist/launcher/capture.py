"""What a worker writes: to the console, to its log file, and its end kept for a report."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from pathlib import Path

from tfdist.errors import LaunchError, explain
from tfdist.launcher.console import Console, Stream
from tfdist.launcher.lines import LineBuffer

TAIL_LINES = 30
_CHUNK = 1 << 16


class LogFile:
    """A worker's `rank-N.log`: both its streams as they came, a line never torn by the other."""

    def __init__(self, path: Path) -> None:
        """Opens (and empties) the file.

        Raises:
            LaunchError: if that is not possible.
        """
        self.path = path
        self.failure: OSError | None = None
        self._lock = threading.Lock()
        self._pending: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise LaunchError(
                explain(
                    f"The log file {path} can't be written ({error.strerror})",
                    received=str(path.parent),
                    source="--log-dir",
                    fix="Name a folder that you can write to",
                )
            ) from error

    def write(self, stream: Stream, chunk: bytes, end: bool = False) -> None:
        """Adds what a stream delivered, up to its last whole line or progress update."""
        with self._lock:
            data = self._pending[stream] + chunk
            cut = len(data) if end else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            self._pending[stream] = data[cut:]
            if self.failure is not None:
                return
            try:
                self._write(data[:cut])
            except OSError as error:  # a full disk must not end the training
                self.failure = error

    def _write(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]

    def close(self) -> None:
        self._file.close()


class Capture(threading.Thread):
    """Reads one stream of one worker to its end.

    Args:
        rank: the worker's.
        stream: which of its streams.
        pipe: the end to read from; closed when the thread ends.
        stop: a file descriptor that becomes readable when the worker is gone and nothing more is to
            be waited for: a process that escaped may hold the pipe open for ever.
        console: where the lines go.
        log: the worker's log file, if any.
    """

    def __init__(
        self, rank: int, stream: Stream, pipe: int, stop: int, console: Console, log: LogFile | None
    ) -> None:
        super().__init__(name=f"rank-{rank}-{stream}", daemon=True)
        self._rank = rank
        self._stream: Stream = stream
        self._pipe = pipe
        self._stop_signal = stop
        self._console = console
        self._log = log
        self._live = console.is_terminal(stream)
        self._buffer = LineBuffer(keep_colours=self._live)
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)

    @property
    def tail(self) -> list[str]:
        """The last lines so far."""
        return [line.decode("utf-8", "replace") for line in self._tail.copy()]

    def run(self) -> None:
        """Reads until the stream ends, or is told to stop and has no more at the moment."""
        poller = select.poll()
        poller.register(self._pipe, select.POLLIN)
        poller.register(self._stop_signal, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            chunk = os.read(self._pipe, _CHUNK) if self._pipe in ready else b""
            if not chunk:
                break
            if self._log is not None:
                self._log.write(self._stream, chunk)
            self._pass_on(self._buffer.feed(chunk))
        if self._log is not None:
            self._log.write(self._stream, b"", end=True)
        self._pass_on(self._buffer.finish())
        os.close(self._pipe)

    def _pass_on(self, lines: list[bytes]) -> None:
        progress = self._buffer.progress if self._live else None
        self._tail.extend(lines[-TAIL_LINES:])
        if lines or self._live:
            self._console.emit(self._rank, self._stream, lines, progress)
