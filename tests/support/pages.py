"""Reads Markdown pages: their code blocks, and the comments that say how a test treats each.

A comment on the line before a block holds `key: value` pairs:

    <!-- file: train.py -->         the block is saved under this name; commands of the page can run it
    <!-- test: shown -->            another product's program or command: shown, not run
    <!-- test: torch -->            needs PyTorch
    <!-- test: make -->             too long here: each command is a target of the Makefile
    <!-- test: elsewhere -->        needs what is not here (a GPU, a cluster, an account): read, not run
    <!-- test: ci -->               too long here: .ci/run or the Makefile does the same

Python blocks without a file name are one session: they run in the page's order in one process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Block", "Page", "anchors", "links", "read_page"]

_BLOCK = re.compile(
    r"(?:^<!-- (?P<notes>[^\n]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: what stands behind the fence.
        text: the content.
        line: line number of the fence in the page.
        notes: the pairs of the comment before it.
    """

    language: str
    text: str
    line: int
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str | None:
        """The name that the block is saved under."""
        return self.notes.get("file")

    @property
    def mode(self) -> str:
        """How it is tested: "run", or the comment's word."""
        return self.notes.get("test", "run")


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path
    text: str
    blocks: tuple[Block, ...]

    def session(self) -> str:
        """Returns the Python blocks without a file name, one after the other."""
        blocks = (b for b in self.blocks if b.language == "python" and b.file is None)
        return "\n".join(b.text for b in blocks if b.mode == "run")

    def files(self) -> dict[str, str]:
        """Returns what is saved next to the commands, by name."""
        return {b.file: b.text for b in self.blocks if b.file is not None}

    def commands(self) -> list[tuple[str, str]]:
        """Returns (command, mode) of every line of the shell blocks."""
        return [
            (line.strip(), block.mode)
            for block in self.blocks
            if block.language == "bash"
            for line in block.text.replace("\\\n", " ").splitlines()
            if line.strip() and not line.startswith("#")
        ]


def read_page(path: Path) -> Page:
    """Reads a page."""
    text = path.read_text()
    blocks = []
    for match in _BLOCK.finditer(text):
        pairs = (pair.partition(":") for pair in (match["notes"] or "").split(",") if ":" in pair)
        notes = {key.strip(): value.strip() for key, _, value in pairs}
        line = text.count("\n", 0, match.start("language")) + 1
        blocks.append(Block(match["language"], match["text"], line, notes))
    return Page(path, text, tuple(blocks))


def links(page: Page) -> list[str]:
    """Returns the targets of a page's links."""
    return _LINK.findall(page.text)


def anchors(page: Page) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_BLOCK.sub("", page.text))
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}
