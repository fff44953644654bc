"""The rows of the matrix: one per feature of `fit`, each a plain Keras function.

A row builds a model from fixed seeds, trains it, and returns what it saw. It is run once by stock
Keras on one device (the reference) and once per column; a cell is green when every process of the
column returns what the reference returned.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.compare import Cell
    from parity.context import Context

__all__ = ["NO_SUM_WITHIN", "ROWS", "Differs", "Refused", "Row", "load_rows", "row"]

SECTIONS = (
    "data",
    "training",
    "losses",
    "optimizers",
    "precision",
    "layers",
    "metrics",
    "callbacks",
    "saving",
)


@dataclass(frozen=True)
class Differs:
    """Why a row can't equal one device under some columns, and what it promises there instead."""

    reason: str
    check: Callable[[Cell], None]
    columns: tuple[str, ...] = ("mirrored", "mirrored_3", "multi_worker", "parameter_server_sync")


@dataclass(frozen=True)
class Refused:
    """Why a row can't work under some columns, which say so before any step."""

    reason: str
    message: str
    """Part of the error's text."""
    columns: tuple[str, ...] = ("parameter_server_sync",)


NO_SUM_WITHIN = Refused(
    "The workers of a synchronous step add nothing up in its middle: a loss that divides by the sum "
    "of weights or masks over the global batch, and statistics over it, are refused.",
    "can't add anything up in the middle of a step",
)


@dataclass(frozen=True)
class Row:
    """One feature of `fit`.

    Attributes:
        name: The pytest id and the row's name in the table.
        section: The part of the table it belongs to.
        run: The plain Keras function.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        odd: Whether it also runs on three replicas, which divide nothing evenly.
        refused: Set when some columns raise an error, which is what the row then expects of them.
        differs: Set when some columns can't equal one device by their nature.
        check: A further assertion on the cell, after the comparison.
        needs: Columns whose `saving.keep_models` must have run before: they leave files in the shared folder.
        timeout: The deadline of one cell in seconds.
        loose: Why the tolerance is wider than the matrix's own, for the table.
    """

    name: str
    section: str
    run: Callable[[Context], Mapping[str, Any]]
    rtol: float = 1e-4
    atol: float = 1e-5
    odd: bool = False
    refused: Refused | None = None
    differs: Differs | None = None
    check: Callable[[Cell], None] | None = None
    needs: tuple[str, ...] = ()
    timeout: float = 60.0
    loose: str = ""


ROWS: dict[str, Row] = {}


def row(name: str, section: str, **settings: Any) -> Callable[[Callable], Callable]:
    """Registers a row function under a name."""

    def register(run: Callable) -> Callable:
        if name in ROWS:
            raise ValueError(f"Two rows are called {name!r}.")
        if section not in SECTIONS:
            raise ValueError(f"Unknown section {section!r} of row {name!r}; known: {SECTIONS}.")
        ROWS[name] = Row(name, section, run, **settings)
        return run

    return register


def load_rows() -> dict[str, Row]:
    """Imports every module of `parity.rows` and returns all rows, section by section."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent / "rows")]):
        importlib.import_module(f"parity.rows.{module.name}")
    return dict(sorted(ROWS.items(), key=lambda item: SECTIONS.index(item[1].section)))
