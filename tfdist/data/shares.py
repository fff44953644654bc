"""Which rows of each global batch belong to which worker. Pure arithmetic, without TensorFlow.

Legend: G rows in a global batch, W workers, b = G / W rows of one worker's share, n rows in all.

    rows        0 . . . b . . . 2b . . . G                2G              n
    batch       |------- batch 0 --------|---- batch 1 ---|---- batch 2 --|
    worker      |   0   |   1   |   ...  |  0  |  1 | ... |  0  | 1 (part or no rows)

In global batch k, worker w takes rows [k*G + w*b, k*G + (w+1)*b), cut off at n. In a last batch that
is not full, the first workers therefore have full shares and the last ones may have none; their
share is still a step, with zero rows, so that every worker takes the same number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfdist.errors import DataError, explain

__all__ = ["Share"]


@dataclass(frozen=True)
class Share:
    """One worker's part of every global batch.

    Attributes:
        global_batch: rows of a global batch over all workers.
        num_workers: number of workers.
        rank: this worker, from 0.
    """

    global_batch: int
    num_workers: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        """Checks that every worker has a part, and the same one.

        Raises:
            DataError: the batch does not divide over the workers, or the rank is none of theirs.
        """
        for name in ("global_batch", "num_workers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DataError(
                    explain(
                        f"`{'global_batch_size' if name == 'global_batch' else name}` must be a "
                        "positive integer",
                        received=repr(value),
                        fix="Give the number of rows of a step over all replicas, such as 32"
                        if name == "global_batch"
                        else "Give the number of workers, 1 for one process",
                    )
                )
        if not 0 <= self.rank < self.num_workers:
            raise DataError(
                explain(
                    "`rank` must be one of the workers",
                    received=f"rank={self.rank}, num_workers={self.num_workers}",
                    fix="Ranks count from 0 to num_workers - 1",
                )
            )
        if self.global_batch % self.num_workers:
            lower = self.global_batch // self.num_workers * self.num_workers
            raise DataError(
                explain(
                    "The global batch must divide evenly over the workers",
                    received=f"global_batch_size={self.global_batch}, workers={self.num_workers}",
                    fix=f"Use {lower or self.num_workers} or {lower + self.num_workers}, or give "
                    "per_replica_batch_size instead",
                )
            )

    @property
    def batch(self) -> int:
        """Rows of a full share."""
        return self.global_batch // self.num_workers

    @property
    def offset(self) -> int:
        """Position of the share's first row in a global batch."""
        return self.rank * self.batch

    def steps(self, rows: int, drop_remainder: bool = False) -> int:
        """Number of global batches in `rows` rows: the same on every worker."""
        full, rest = divmod(rows, self.global_batch)
        return full + bool(rest and not drop_remainder)

    def last_rows(self, rows: int) -> int:
        """Rows of this worker's share of a last batch that is not full; 0 when all are full."""
        rest = rows % self.global_batch
        return min(max(rest - self.offset, 0), self.batch)

    def own_rows(self, rows: int, drop_remainder: bool = False) -> int:
        """Number of rows, out of `rows`, that this worker reads."""
        full = rows // self.global_batch * self.batch
        return full + (0 if drop_remainder else self.last_rows(rows))

    def bounds(self, step: Any, rows: Any, minimum: Any = min) -> tuple[Any, Any]:
        """First and last-plus-one row of this worker's share of global batch `step`.

        Args:
            step: number of the global batch, an int or a tensor.
            rows: number of rows in all, of the same type.
            minimum: the minimum of two such values; `tf.minimum` for tensors.

        Returns:
            The bounds, both at most `rows`.
        """
        start = step * self.global_batch + self.offset
        return minimum(start, rows), minimum(start + self.batch, rows)
