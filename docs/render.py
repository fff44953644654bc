"""Writes the tables that come from the code into the pages: `make docs` (or --check: are they current?).

A table stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from parity.columns import COLUMNS  # noqa: E402
from parity.registry import load_rows  # noqa: E402
from parity.runner import runs_in  # noqa: E402
from parity.table import markdown  # noqa: E402

PAGES = ("README.md", "docs/parity.md")


def summary() -> str:
    """Returns the matrix in brief: how many rows of each section run under each strategy.

    Those that a strategy refuses are counted apart, after a dash as in the matrix.
    """
    rows = load_rows()
    columns = [name for name, column in COLUMNS.items() if column.shown]
    counts: Counter[tuple[str, str]] = Counter()
    refused: Counter[tuple[str, str]] = Counter()
    for row in rows.values():
        for column in columns:
            if runs_in(row, column):
                is_refused = row.refused is not None and column in row.refused.columns
                (refused if is_refused else counts)[row.section, column] += 1
    sections = dict.fromkeys(row.section for row in rows.values())
    lines = [
        "| area | " + " | ".join(COLUMNS[c].title for c in columns) + " |",
        "|---|" + "--:|" * len(columns),
    ]
    for section in sections:
        cells = [
            f"{counts[section, column]} ✓"
            + (f", {refused[section, column]} —" if refused[section, column] else "")
            for column in columns
        ]
        lines.append(f"| {section} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measured(name: str) -> str:
    """Returns the table of a benchmark, as it was written by its `--json`."""
    figures = json.loads((ROOT / "docs" / "measured" / f"{name}.json").read_text())
    machine = figures["machine"]
    versions = ", ".join(
        f"{p} {machine[p]}" for p in ("tensorflow", "keras", "torch") if p in machine
    )
    where = (
        f"{machine['cores']} cores (load average {machine['load_before']} of other work at the start), "
        f"no GPU, Python {machine['python']}, {versions}."
    )
    return "\n".join([f"{figures['caption']} {where}", "", *figures["table"]])


TABLES = {
    "summary": summary,
    "matrix": lambda: markdown().strip(),
    "fit_overhead": lambda: measured("fit_overhead"),
    "ps_overhead": lambda: measured("ps_overhead"),
    "scaling": lambda: measured("scaling"),
}


def render(text: str) -> str:
    """Returns a page with its tables as they are now."""
    for name, table in TABLES.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        head, found, rest = text.partition(begin)
        if found:
            tail = rest.partition(end)[2]
            text = f"{head}{begin}\n{table()}\n{end}{tail}"
    return text


def main() -> int:
    """Writes the pages; with --check, says whether one is stale and writes nothing."""
    stale = 0
    for name in PAGES:
        path = ROOT / name
        text = path.read_text()
        if render(text) != text:
            stale += 1
            print(f"{name}: {'stale; run `make docs`' if '--check' in sys.argv else 'written'}")
            if "--check" not in sys.argv:
                path.write_text(render(text))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
