r"""A stream of bytes cut into whole lines, with progress bars settled.

A progress bar rewrites its line with carriage returns and backspaces until a newline ends it. What
counts of such a line is its last state:

    b"1/3 [=  ]\b\b\b\b\b\b\b\b\b\r2/3 [== ]\b\b\b\b\b\b\b\b\b\r3/3 [===]\n"  ->  b"3/3 [===]"
"""

from __future__ import annotations

import re

# A "line" longer than this is data, not text; it is passed on in pieces.
LONGEST = 1 << 20

# An escape sequence of a terminal (colours, erase), or one character.
_TOKEN = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|.", re.DOTALL)
_ESCAPE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


class LineBuffer:
    """Collects chunks of one stream and gives out its whole lines.

    Args:
        keep_colours: whether a settled progress bar keeps its escape sequences. Lines that were
            never rewritten are passed on byte by byte in any case.
    """

    def __init__(self, keep_colours: bool = True) -> None:
        self._keep_colours = keep_colours
        self._pending = b""

    @property
    def progress(self) -> bytes | None:
        """The current state of a line that is being rewritten, or None."""
        if b"\r" not in self._pending:
            return None
        return self._settled(self._pending)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Takes a chunk; returns the lines that it completed, settled and without newline."""
        *lines, rest = (self._pending + chunk).split(b"\n")
        if b"\r" in rest:
            # An earlier state of a progress bar never counts again: the buffer stays small.
            rest = b"\r" + _last_state(rest)
        if len(rest) > LONGEST:
            lines.append(rest)
            rest = b""
        self._pending = rest
        return [self._settled(line) for line in lines]

    def finish(self) -> list[bytes]:
        """Returns the last line if no newline ended it."""
        rest, self._pending = self._settled(self._pending), b""
        return [rest] if rest else []

    def _settled(self, line: bytes) -> bytes:
        if b"\r" not in line and b"\b" not in line:
            return line
        state = settle(line)
        return state if self._keep_colours else plain(state)


def settle(line: bytes) -> bytes:
    """The last state of a line that carriage returns and backspaces rewrite."""
    state = _last_state(line)
    return _apply_backspaces(state) if b"\b" in state else state


def plain(line: bytes) -> bytes:
    """The line without a terminal's escape sequences."""
    return _ESCAPE.sub(b"", line) if b"\x1b" in line else line


def fit(text: str, columns: int) -> str:
    """Cuts text with escape sequences to a number of visible characters."""
    kept, width = [], 0
    for token in _TOKEN.findall(text):
        if len(token) == 1:
            width += 1
            if width > columns:
                continue
        kept.append(token)
    return "".join(kept)


def _last_state(line: bytes) -> bytes:
    states = [state for state in line.split(b"\r") if state.strip(b"\b")]
    return states[-1] if states else b""


def _apply_backspaces(state: bytes) -> bytes:
    """Writes the characters into cells as a terminal does; a backspace goes one cell back."""
    cells: list[str] = []
    position, escapes = 0, ""
    for token in _TOKEN.findall(state.decode("utf-8", "replace")):
        if token == "\b":
            position = max(0, position - 1)
        elif len(token) > 1:
            escapes += token
        else:
            cells[position : position + 1] = [escapes + token]
            position, escapes = position + 1, ""
    return ("".join(cells) + escapes).encode()
