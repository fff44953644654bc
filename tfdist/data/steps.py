"""How many steps an epoch has, on this worker and for the whole job."""

from __future__ import annotations

import dataclasses
import logging

from tfdist.data import agreement
from tfdist.data.agreement import Claim, Exchange
from tfdist.data.plans import Plan
from tfdist.data.sources import Source
from tfdist.errors import DataError, explain

__all__ = ["settle"]

logger = logging.getLogger(__name__)


def settle(
    plan: Plan,
    source: Source,
    claim: Claim,
    steps: int | None,
    exchange: Exchange | None,
    *,
    alone: bool,
) -> Plan:
    """Settles the number of steps of an epoch, with the other workers if they can be asked.

    Args:
        plan: the plan so far.
        source: the opened source.
        claim: what this worker is about to read; its steps are filled in here.
        steps: what the user asked for.
        exchange: see `agree`; None if there is nobody to ask.
        alone: whether this is the only worker.

    Returns:
        The plan with `steps` and `refill`.

    Raises:
        DataError: the data has no steps, fewer than asked for, or the workers don't match.
    """
    own, refill = _own_steps(plan, source, claim.shard, steps, alone)
    agreed = agreement.agree(dataclasses.replace(claim, steps=-1 if own is None else own), exchange)
    if agreed == 0:
        raise DataError(
            explain(
                "A global batch has more rows than the data, and drop_remainder leaves nothing",
                received=f"batches of {plan.share.global_batch}, rows={source.count}",
                fix="Use a smaller batch, or drop_remainder=False",
            )
        )
    if plan.drop_remainder and source.count and not source.batched:
        left_out = source.count % plan.share.global_batch
        if left_out:
            logger.warning(
                "drop_remainder leaves out %d of %d rows in every epoch", left_out, source.count
            )
    return dataclasses.replace(plan, steps=None if agreed < 0 else agreed, refill=refill)


def _own_steps(
    plan: Plan, source: Source, shard: str, steps: int | None, alone: bool
) -> tuple[int | None, bool]:
    """Steps of an epoch of this worker's data (None if unknown or infinite), and `refill`."""
    if source.infinite:
        return None, False
    if source.count is None:
        if shard == "global" or alone:
            return steps, False
        if steps is None and not plan.repeat:
            raise DataError(
                explain(
                    "Each worker's own data must have a known size, since all must take the same "
                    "number of steps",
                    received=f"shard={shard!r} with {source.name} of unknown cardinality",
                    fix="Say `steps=`, or give the size with "
                    "tf.data.experimental.assert_cardinality, or use .repeat()",
                )
            )
        return steps, True
    available = (
        source.count if source.batched else plan.share.steps(source.count, plan.drop_remainder)
    )
    if steps is None or plan.repeat:
        return available, False
    if steps > available:
        raise DataError(
            explain(
                "The data has fewer steps than asked for",
                received=f"steps={steps}; there are {available}",
                fix="Say repeat=True to go through the data again, or ask for fewer steps",
            )
        )
    return steps, False
