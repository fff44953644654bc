"""The parity matrix: every cell is a test called `row[column]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from parity.columns import COLUMNS
from parity.registry import load_rows
from parity.runner import Matrix, cells, check

_ROWS = load_rows()
_CELLS = {
    f"{row}[{column}]": (row, column)
    for row, column in cells()
    if _ROWS[row].odd or not COLUMNS[column].brief
}


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest) -> Iterator[Matrix]:
    """The groups of processes, told the order in which this run's tests will ask."""
    with Matrix() as running:
        running.schedule(
            item.callspec.params["cell"]
            for item in request.session.items
            if item.path == request.path and hasattr(item, "callspec")
        )
        yield running


@pytest.mark.parametrize("cell", list(_CELLS.values()), ids=list(_CELLS))
def test_parity(matrix: Matrix, cell: tuple[str, str]) -> None:
    check(matrix.rows[cell[0]], matrix.cell(*cell))
