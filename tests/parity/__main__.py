"""`make parity`: runs the matrix and prints it as a table.

python tests/parity [--render] [--columns single,mirrored] [ROW ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parity.columns import COLUMNS
from parity.registry import Row, load_rows
from parity.runner import Matrix, cells, check
from parity.table import markdown, notes, symbol
from rich.console import Console
from rich.table import Table


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 when every cell that ran is green."""
    parser = argparse.ArgumentParser(
        prog="parity", description="The fit-feature x strategy matrix."
    )
    parser.add_argument("rows", nargs="*", help="parts of row names; default: all rows")
    parser.add_argument("--columns", help="comma-separated column names; default: all")
    parser.add_argument(
        "--render", action="store_true", help="print the promised table, run nothing"
    )
    parser.add_argument("--errors", type=Path, help="add what went wrong to this file, at once")
    chosen = parser.parse_args(arguments)
    if chosen.render:
        sys.stdout.write(markdown())
        return 0
    wanted = cells()
    if chosen.columns:  # also the hidden ones, where every row has a cell
        wanted = [
            (row, column)
            for row in load_rows()
            for column in chosen.columns.split(",")
            if (row, column) in wanted or not COLUMNS[column].shown
        ]
    if chosen.rows:
        wanted = [cell for cell in wanted if any(part in cell[0] for part in chosen.rows)]
    console = Console()
    began = time.monotonic()
    errors: dict[tuple[str, str], str] = {}
    with Matrix() as matrix:
        matrix.schedule(wanted)
        for row, column in wanted:
            try:
                check(matrix.rows[row], matrix.cell(row, column))
            except Exception as error:  # any failure is a red cell
                errors[row, column] = f"{type(error).__name__}: {error}"
                if chosen.errors:
                    with chosen.errors.open("a") as file:
                        file.write(f"## {row}[{column}]\n{errors[row, column]}\n\n")
                console.print(f"[red]✗[/] {row} \\[{column}]", highlight=False)
        if not chosen.errors:
            for (row, column), text in errors.items():
                console.print(f"## {row}[{column}]\n{text}\n", markup=False, highlight=False)
        _print(console, matrix.rows, wanted, errors)
    green = len(wanted) - len(errors)
    console.print(f"{green} of {len(wanted)} cells green in {time.monotonic() - began:.0f} s")
    return 1 if errors else 0


def _print(
    console: Console,
    rows: dict[str, Row],
    wanted: list[tuple[str, str]],
    errors: dict[tuple[str, str], str],
) -> None:
    shown = [c for c in COLUMNS if any(column == c for _, column in wanted)]
    table = Table("fit feature", *[COLUMNS[c].title for c in shown])
    footnotes = notes(rows)
    section = ""
    for row in dict.fromkeys(name for name, _ in wanted):
        if rows[row].section != section:
            section = rows[row].section
            table.add_section()
            table.add_row(f"[bold]{section}")
        marks = []
        for column in shown:
            ran, failed = (row, column) in wanted, (row, column) in errors
            mark = symbol(rows[row], column, footnotes, failed) if ran else ""
            marks.append(f"[{'red' if failed else 'green'}]{mark.replace('[', chr(92) + '[')}[/]")
        table.add_row(row, *marks)
    console.print(table)
    seen = " ".join(symbol(rows[r], c, footnotes) for r, c in wanted)
    for text, number in footnotes.items():
        if f"[{number}]" not in seen:
            continue
        console.print(f"{number}. {text}", highlight=False, markup=False)


if __name__ == "__main__":
    sys.exit(main())
