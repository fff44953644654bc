"""Runs the cells of the matrix: one group of processes per server, fed one cell after another.

The order of the cells is known when the tests are collected, so the groups run ahead of the test that asks
for a cell, and at most two processes work at any moment.
"""

from __future__ import annotations

import queue
import re
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity import compare
from parity.columns import COLUMNS, SERVERS
from parity.registry import Row, load_rows
from support.server import CaseServer

__all__ = ["Matrix", "cells", "check", "runs_in"]

_PROCESSES = 2
_START = 90.0


def runs_in(row: Row, column: str) -> bool:
    """Whether a row has a cell in a column of the table."""
    return COLUMNS[column].shown and (row.odd or column != "mirrored_3")


def cells() -> list[tuple[str, str]]:
    """Returns every (row, column) of the table, in order."""
    return [(name, c) for name, row in load_rows().items() for c in COLUMNS if runs_in(row, c)]


class _Tokens:
    """Lets `n` processes work at once, in the order of asking: a group waits no longer than the others."""

    def __init__(self, n: int) -> None:
        self._free = n
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def taken(self, n: int) -> Iterator[None]:
        """Holds `n` tokens while the block runs."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket and self._free >= n)
            self._waiting.popleft()
            self._free -= n
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += n
                self._changed.notify_all()


@dataclass(frozen=True)
class _Outcome:
    """What the processes of a column returned for a row, and the files they left."""

    results: list[Any]
    files: tuple[str, ...]


@dataclass
class _Job:
    key: tuple[str, str]
    case: str
    timeout: float
    arguments: dict[str, str]
    needs: list[Future] = field(default_factory=list)
    future: Future = field(default_factory=Future)


class _Lane:
    """One group of processes and the jobs that wait for it."""

    def __init__(self, name: str, tokens: _Tokens) -> None:
        self._spec = SERVERS[name]
        self._tokens = tokens
        self._server = CaseServer(self._spec.setup, self._spec.processes, start_timeout=_START)
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name=f"parity-{name}", daemon=True)
        self._stopped = False

    def put(self, job: _Job) -> None:
        self._jobs.put(job)
        if not self._thread.is_alive() and not self._stopped:
            self._thread.start()

    def close(self) -> None:
        self._stopped = True
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=120)
        self._server.close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._stopped:
            try:
                for needed in job.needs:
                    needed.result()
                folder = Path(job.arguments["folder"])
                folder.mkdir()
                with self._tokens.taken(self._spec.processes):
                    results = self._server.call(job.case, job.timeout, **job.arguments)
                job.future.set_result(_Outcome(results, _files(folder)))
                shutil.rmtree(folder, ignore_errors=True)
            except Exception as error:
                job.future.set_exception(error)


def _files(folder: Path) -> tuple[str, ...]:
    """Returns the names of the files below a folder, without what names a host, process or rank."""
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    own = re.compile(r"(^|/)worker-\d+/")
    names = {_SHARDS.sub(".data", n) for n in names}
    return tuple(sorted({_EVENTS.sub("events", n) for n in names if not own.search(n)}))


_SHARDS = re.compile(r"\.data-\d+-of-\d+$")  # TensorFlow writes one for each device
_EVENTS = re.compile(r"events\.out\.tfevents\..*")


class Matrix:
    """Runs cells on demand, ahead of demand when it was told the order."""

    def __init__(self) -> None:
        self.rows = load_rows()
        self._folder = Path(tempfile.mkdtemp(prefix="parity-"))
        (self._folder / "shared").mkdir()
        tokens = _Tokens(_PROCESSES)
        self._lanes = {name: _Lane(name, tokens) for name in SERVERS}
        self._jobs: dict[tuple[str, str], _Job] = {}

    def schedule(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Starts to run cells in this order."""
        wanted = list(wanted)
        for (
            row,
            _,
        ) in wanted:  # first of all, so that no group waits for what comes after its own job
            for source in self.rows[row].needs:
                self._keep(source)
        for row, column in wanted:
            self._job(row, "reference")
            self._job(row, column)

    def cell(self, row: str, column: str) -> compare.Cell:
        """Returns a cell's results; raises what the row raised."""
        self.schedule([(row, column)])
        reference = self._job(row, "reference").future.result()
        settings = self.rows[row]
        job = self._job(row, column)
        if settings.refused is not None and column in settings.refused.columns:
            outcome = _Outcome([{"error": str(job.future.exception() or "no error")}], ())
        else:
            outcome = job.future.result()
        return compare.Cell(
            column,
            reference.results[0],
            outcome.results,
            outcome.files,
            reference.files,
            settings.rtol,
            settings.atol,
        )

    def close(self) -> None:
        """Ends all processes and removes their files."""
        for lane in self._lanes.values():
            lane.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Matrix:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _job(self, row: str, column: str) -> _Job:
        needs = [self._keep(source).future for source in self.rows[row].needs]
        timeout = self.rows[row].timeout
        return self._add(
            (row, column), column, "parity.columns:run_row", timeout, {"row": row}, needs
        )

    def _keep(self, column: str) -> _Job:
        return self._add(("", column), column, "parity.rows.saving:keep_models", 90.0, {}, [])

    def _add(
        self,
        key: tuple[str, str],
        column: str,
        case: str,
        timeout: float,
        arguments: dict[str, str],
        needs: list[Future],
    ) -> _Job:
        if key not in self._jobs:
            arguments = arguments | {
                "column": column,
                "folder": str(self._folder / f"cell{len(self._jobs)}"),
                "shared": str(self._folder / "shared"),
            }
            self._jobs[key] = _Job(key, case, timeout, arguments, needs)
            self._lanes[COLUMNS[column].server].put(self._jobs[key])
        return self._jobs[key]


def check(row: Row, cell: compare.Cell) -> None:
    """Fails when a cell does not keep the row's promise."""
    if row.refused is not None and cell.column in row.refused.columns:
        assert row.refused.message in cell.results[0]["error"], cell.results[0]["error"]
        return
    if row.differs is not None and cell.column in row.differs.columns:
        row.differs.check(cell)
    else:
        compare.assert_equal(cell)
    if row.check is not None:
        row.check(cell)
