"""Shows which rows each worker would get, without training.

The metrics that `fit` prints are those of the whole job and therefore equal on all workers; this is
the place to see that their rows are not.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data import pipeline, sharding
from tfdist.data.arrays import Rows, from_arrays
from tfdist.data.making import plan_dataset
from tfdist.data.plans import DataInfo
from tfdist.data.sources import Source
from tfdist.data.streams import Stripes

__all__ = ["Preview", "preview_shards"]

_SHOWN = 6


@dataclass(frozen=True)
class Preview:
    """The rows of the first steps of every worker.

    Attributes:
        rows: row numbers in the source, by worker, then by step. Where each worker brings its own
            data, its rows are counted by themselves.
        facts: what is known of each worker's data.
    """

    rows: list[list[list[int]]]
    facts: list[DataInfo]

    def __str__(self) -> str:
        """A table with a line per worker."""
        first = self.facts[0]
        steps = "?" if first.steps is None else first.steps
        lines = [f"{first.name}: global batch {first.global_batch_size}, {steps} steps per epoch"]
        for worker, batches in enumerate(self.rows):
            cells = " | ".join(f"{len(batch)} rows: {_brief(batch)}" for batch in batches)
            lines.append(f"worker {worker}   {cells or 'no rows'}")
        return "\n".join(lines)


def _brief(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:_SHOWN]))
    return f"{shown}, ..." if len(rows) > _SHOWN else shown or "none"


def preview_shards(
    source: Any = None, *, num_workers: int, steps: int = 3, **arguments: Any
) -> Preview:
    """Finds the rows that each worker would get, in this process alone.

    Args:
        source: see `make_dataset`. A function is called once for each worker.
        num_workers: number of workers.
        steps: how many steps to show.
        **arguments: as for `make_dataset`; without `rank`.

    Returns:
        The rows; `print` shows them as a table.

    Raises:
        DataError: as for `make_dataset`.
    """
    rows, facts = [], []
    for rank in range(num_workers):
        opened, plan, known = plan_dataset(
            source, num_workers=num_workers, rank=rank, **{**arguments, "exchange": None}
        )
        plan = dataclasses.replace(
            plan, map_fn=None, options=dataclasses.replace(plan.options, prefetch=0, cache=False)
        )
        numbers = pipeline.build(_row_numbers(opened), plan)
        rows.append([batch.tolist() for batch in numbers.take(steps).as_numpy_iterator()])
        facts.append(known)
    return Preview(rows, facts)


def _row_numbers(source: Source) -> Source:
    """The same source with the rows' numbers instead of their content."""
    if isinstance(source, Rows):
        return from_arrays(np.arange(source.count), name=source.name)
    if isinstance(source, Stripes):
        firsts = itertools.accumulate(source.counts, initial=0)
        parts = [tf.data.Dataset.range(f, f + count) for f, count in zip(firsts, source.counts)]
        return dataclasses.replace(source, parts=tuple(parts), decode=None)
    if not source.batched:
        numbers = source.dataset.enumerate().map(lambda number, *_: number)
        return dataclasses.replace(source, dataset=numbers, decode=None)

    def count(total: tf.Tensor, *batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        end = total + sharding.row_count(batch[0] if len(batch) == 1 else batch)
        return end, tf.range(total, end)

    numbers = source.dataset.scan(tf.constant(0, tf.int64), count)
    return dataclasses.replace(source, dataset=numbers)
