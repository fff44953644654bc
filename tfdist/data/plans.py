"""What is to be built: the decisions of `make_dataset`, taken before the pipeline is put together."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfdist.config import Data
from tfdist.data.shares import Share
from tfdist.errors import DataError, explain

__all__ = ["DEFAULT_SEED", "DataInfo", "Plan", "local_seed", "shuffle_seed"]

# The seed of a job with several workers that was given none: they have to shuffle alike.
DEFAULT_SEED = 20_011
_RANK_STRIDE = 1_000_003


@dataclass(frozen=True)
class DataInfo:
    """What is known of a data set that `make_dataset` returned.

    Attributes:
        rows: rows of the source; None when unknown or infinite.
        steps: steps of an epoch; None when unknown or infinite.
        global_batch_size: rows of a global batch over all workers.
        num_workers: number of workers.
        rank: the worker whose part it is.
        name: the source.
    """

    rows: int | None
    steps: int | None
    global_batch_size: int
    num_workers: int
    rank: int
    name: str


@dataclass(frozen=True)
class Plan:
    """How the pipeline is built.

    Attributes:
        share: this worker's part of each batch of the source; all of it in a local source.
        seed: of the order of rows; None keeps the source's order.
        drop_remainder: whether a last batch that is not full is left out.
        repeat: whether an iterator goes on for ever.
        steps: steps of an epoch; None when unknown or infinite.
        refill: starts an unknown source anew when it ends before `steps`.
        start_epoch: number of the first epoch.
        map_fn: applied to each row.
        options: the remaining settings.
    """

    share: Share
    seed: int | None
    drop_remainder: bool
    repeat: bool
    steps: int | None
    refill: bool
    start_epoch: int
    map_fn: Callable[..., Any] | None
    options: Data


def shuffle_seed(seed: int | None, num_workers: int) -> int:
    """The seed to shuffle with, when none may have been given.

    Several workers then use `DEFAULT_SEED`; a single process draws one from Python's `random`,
    which `keras.utils.set_random_seed` seeds.
    """
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise DataError(
                explain(
                    "`seed` must be a non-negative integer",
                    received=repr(seed),
                    fix="Give one, the same on every worker, such as seed=1",
                )
            )
        return seed
    return DEFAULT_SEED if num_workers > 1 else random.getrandbits(31)


def local_seed(seed: int, rank: int) -> int:
    """The seed of one worker whose rows are its own; rank 0 has the common seed."""
    return seed + rank * _RANK_STRIDE
