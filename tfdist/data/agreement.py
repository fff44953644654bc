"""Lets the workers compare what they are about to read, before any step is taken.

Workers that disagree would wait for each other in a collective until it breaks, or train on the
wrong rows without a word.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfdist.errors import DataError, explain

__all__ = ["Claim", "Exchange", "agree"]

logger = logging.getLogger(__name__)

Exchange = Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class Claim:
    """What one worker is about to read.

    Attributes:
        shard: "global", "local" or "none".
        rows: rows of its source; -1 when unknown or infinite.
        steps: steps of an epoch; -1 when unknown or infinite.
        batch: rows of a global batch.
        order: the seed, or "in order".
        split: the split.
        content: a checksum of a common source; "" where there is none.
    """

    shard: str
    rows: int
    steps: int
    batch: int
    order: str
    split: str
    content: str = ""


# Fields that must be equal on all workers, with what to do when they are not.
_EQUAL = {
    "shard": "Give the same `shard` on every worker",
    "split": "Ask for the same split on every worker",
    "batch": "Give the same global batch size on every worker",
    "order": "Give the same seed and shuffle on every worker",
    "rows": "With shard='global' every worker needs the same data; say shard='local' if each "
    "brings its own part",
    "content": "With shard='global' every worker needs the same data; say shard='local' if each "
    "brings its own part",
}


def agree(own: Claim, exchange: Exchange | None) -> int:
    """Compares the workers' claims.

    Args:
        own: this worker's claim.
        exchange: hands every worker the texts of all, by rank; None on one worker.

    Returns:
        The number of steps that all workers take: the smallest, or -1.

    Raises:
        DataError: what must be equal is not, or a worker has no data.
    """
    if exchange is None:
        return own.steps
    claims = [Claim(**json.loads(text)) for text in exchange(json.dumps(dataclasses.asdict(own)))]
    for name, fix in _EQUAL.items():
        if name in ("rows", "content") and own.shard != "global":
            continue
        values = [getattr(claim, name) for claim in claims]
        if len(set(values)) > 1:
            listing = ", ".join(f"worker {rank}: {value}" for rank, value in enumerate(values))
            raise DataError(
                explain(f"The workers' data differs in its {name}", received=listing, fix=fix)
            )
    known = [claim.steps for claim in claims if claim.steps >= 0]
    if len(known) not in (0, len(claims)):
        raise _unequal(claims, "Some workers' data never ends, others' does")
    steps = min(known, default=-1)
    if steps == 0:
        raise _unequal(claims, "A worker has no data for a single step")
    if len(set(known)) > 1:
        logger.warning(
            "The workers have unequal data (rows %s, steps %s): every epoch takes %d steps, and "
            "%d of this worker's steps are left out",
            [claim.rows for claim in claims],
            known,
            steps,
            own.steps - steps,
        )
    return steps


def _unequal(claims: list[Claim], problem: str) -> DataError:
    listing = ", ".join(f"worker {rank}: {claim.rows}" for rank, claim in enumerate(claims))
    return DataError(
        explain(
            problem,
            received=f"rows by worker (-1: unknown or without end): {listing}",
            fix="Divide the data more evenly, or use shard='global' on the whole of it",
        )
    )
