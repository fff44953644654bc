"""Compares a cell's results with the reference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "Cell",
    "assert_equal",
    "assert_finite",
    "assert_ranks_agree",
    "comparable",
    "differences",
]

CHIEF_ONLY = "chief_"
OWN = "own_"
"""Keys of a result that start so are compared on the chief only, or not compared at all."""


@dataclass(frozen=True)
class Cell:
    """What one row gave in one column."""

    column: str
    reference: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    """By rank."""
    files: tuple[str, ...] = ()
    reference_files: tuple[str, ...] = ()
    rtol: float = 1e-4
    atol: float = 1e-5


def differences(want: Any, got: Any, rtol: float, atol: float, where: str = "") -> list[str]:
    """Returns one line for every place where two nested results differ."""
    if isinstance(want, Mapping) and isinstance(got, Mapping):
        found = []
        if list(want) != list(got) and set(want) != set(got):
            missing, more = sorted(set(want) - set(got)), sorted(set(got) - set(want))
            found.append(f"{where}: missing {missing}, unexpected {more}")
        for key in want:
            if key in got:
                found += differences(want[key], got[key], rtol, atol, f"{where}/{key}")
        return found
    if _is_sequence(want) and _is_sequence(got):
        if len(want) != len(got):
            return [f"{where}: {len(want)} entries, got {len(got)}: {_short(want)}, {_short(got)}"]
        found = []
        for i, (a, b) in enumerate(zip(want, got)):
            found += differences(a, b, rtol, atol, f"{where}[{i}]")
        return found
    if _is_number(want) and _is_number(got):
        return _numbers(np.asarray(want), np.asarray(got), rtol, atol, where)
    return [] if type(want) is type(got) and want == got else [f"{where}: {want!r}, got {got!r}"]


def _numbers(want: np.ndarray, got: np.ndarray, rtol: float, atol: float, where: str) -> list[str]:
    if want.shape != got.shape:
        return [f"{where}: shape {want.shape}, got {got.shape}"]
    if want.dtype.kind in "OSU" or got.dtype.kind in "OSU":
        return [] if (want == got).all() else [f"{where}: {_short(want)}, got {_short(got)}"]
    want, got = want.astype("float64"), got.astype("float64")
    if np.allclose(want, got, rtol=rtol, atol=atol, equal_nan=True):
        return []
    worst = np.unravel_index(np.argmax(np.nan_to_num(np.abs(want - got), nan=np.inf)), want.shape)
    return [f"{where}: {want[worst]:.7g}, got {got[worst]:.7g} (shape {want.shape}, worst {worst})"]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_number(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic | int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value).replace("\n", "")
    return text if len(text) < 120 else text[:120] + "..."


def comparable(result: Mapping[str, Any], *, chief: bool) -> dict[str, Any]:
    """Returns the part of a result that this rank must share with the reference."""
    return {
        key: value
        for key, value in result.items()
        if not key.startswith(OWN) and (chief or not key.startswith(CHIEF_ONLY))
    }


def assert_equal(cell: Cell, only: Sequence[str] = ()) -> None:
    """Fails when a rank's result, or the cell's files, are not the reference's.

    Args:
        cell: The cell.
        only: Compare these keys alone.
    """
    found = []
    for rank, result in enumerate(cell.results):
        want = comparable(cell.reference, chief=rank == 0)
        got = comparable(result, chief=rank == 0)
        if only:
            want, got = ({k: d[k] for k in only if k in d} for d in (want, got))
        found += differences(want, got, cell.rtol, cell.atol, f"rank {rank}")
    if not only and cell.files != cell.reference_files:
        found.append(f"files: {cell.reference_files}, got {cell.files}")
    if found:
        shown = "\n  ".join(found[:12])
        raise AssertionError(
            f"not equal to one device within rtol={cell.rtol}, atol={cell.atol} "
            f"({len(found)} places):\n  {shown}"
        )


def assert_ranks_agree(cell: Cell) -> None:
    """Fails when the processes of a column don't all hold the same numbers."""
    first = comparable(cell.results[0], chief=False)
    for rank, result in enumerate(cell.results[1:], start=1):
        found = differences(first, comparable(result, chief=False), 1e-6, 1e-7, f"rank {rank}")
        assert not found, "the ranks differ:\n  " + "\n  ".join(found[:12])


def assert_finite(cell: Cell) -> None:
    """Fails when a rank has a NaN or an infinity in its history or weights."""
    for rank, result in enumerate(cell.results):
        for part in ("history", "weights"):
            for key, value in result.get(part, {}).items():
                assert np.isfinite(np.asarray(value, "float64")).all(), f"rank {rank}: {key}"
