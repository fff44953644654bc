"""Renders the matrix as a table: README shows it, `make parity` prints it with what was measured."""

from __future__ import annotations

from collections.abc import Mapping

from parity.columns import COLUMNS
from parity.registry import Row, load_rows
from parity.runner import runs_in

__all__ = ["GREEN", "REFUSED", "markdown", "notes", "symbol"]

GREEN, RED, ABSENT, REFUSED = "✓", "✗", "", "—"


def notes(rows: Mapping[str, Row]) -> dict[str, int]:
    """Returns the footnotes by number: why a cell is not, or not tightly, equal to one device."""
    found: dict[str, int] = {}
    for row in rows.values():
        reasons = (
            row.differs and row.differs.reason,
            row.refused and row.refused.reason,
            row.loose,
        )
        for text in reasons:
            if text and text not in found:
                found[text] = len(found) + 1
    return found


def symbol(row: Row, column: str, footnotes: Mapping[str, int], failed: bool = False) -> str:
    """Returns a cell's content: a tick, with the number of its footnote."""
    if not runs_in(row, column):
        return ABSENT
    if failed:
        return RED
    if row.refused and column in row.refused.columns:
        return f"{REFUSED} [{footnotes[row.refused.reason]}]"
    marks = []
    if row.differs and column in row.differs.columns:
        marks.append(footnotes[row.differs.reason])
    if row.loose:
        marks.append(footnotes[row.loose])
    return GREEN + "".join(f" [{m}]" for m in marks)


def markdown(failed: frozenset[tuple[str, str]] = frozenset()) -> str:
    """Returns the table of the promised matrix, or of a run in which some cells failed.

    Args:
        failed: The (row, column) of the cells that were red.
    """
    rows = load_rows()
    footnotes = notes(rows)
    columns = [name for name, column in COLUMNS.items() if column.shown]
    lines = [
        "| `fit` feature | " + " | ".join(COLUMNS[c].title for c in columns) + " |",
        "|---|" + ":-:|" * len(columns),
    ]
    section = ""
    for name, row in rows.items():
        if row.section != section:
            section = row.section
            lines.append(f"| **{section}** |" + " |" * len(columns))
        marks = [symbol(row, c, footnotes, (name, c) in failed) for c in columns]
        lines.append(f"| {name} | " + " | ".join(marks) + " |")
    lines.append("")
    lines += [f"{number}. {text}" for text, number in footnotes.items()]
    return "\n".join(lines) + "\n"
