"""`make_dataset`: from any source to this worker's batches."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.config import Data
from tfdist.data import pipeline, plans
from tfdist.data import steps as steps_module
from tfdist.data.agreement import Claim, Exchange
from tfdist.data.arrays import Rows
from tfdist.data.plans import DataInfo, Plan
from tfdist.data.shares import Share
from tfdist.data.sources import Place, Source, open_source
from tfdist.errors import DataError, explain

__all__ = ["info_of", "make_dataset", "plan_dataset", "steps_per_epoch"]

logger = logging.getLogger(__name__)


def make_dataset(
    source: Any = None,
    *,
    split: str = "train",
    global_batch_size: int,
    num_workers: int = 1,
    rank: int = 0,
    local_replicas: int = 1,
    options: Data | None = None,
    seed: int | None = None,
    training: bool | None = None,
    map_fn: Callable[..., Any] | None = None,
    batched: bool | None = None,
    repeat: bool = False,
    steps: int | None = None,
    start_epoch: int = 0,
    as_supervised: bool | None = None,
    exchange: Exchange | None = None,
    **overrides: Any,
) -> tf.data.Dataset:
    """Makes this worker's part of the input of a job.

    With the same source, seed and global batch size, the global batches are the same on any
    number of workers: worker w of W gets rows [w*b, (w+1)*b) of each, with b = global / W. A
    last batch that is not full is kept; workers without a row in it get a batch of zero rows, so
    that all take the same number of steps.

    Training data is shuffled, in an order that depends on the seed and the epoch only: arrays and
    TFDS splits that fit in memory as a whole, streams within `shuffle_buffer` rows.

    Args:
        source: one of

            - the name of a data set of TensorFlow Datasets, "digits" or "name/config:version", or
              "synthetic_clicks" (see `synthetic_clicks`); None takes `options.dataset`;
            - a tf.data.Dataset of single rows (or of batches, with `batched=True`);
            - arrays: one, or a tuple or dict of them, nested as the model wants its input; large
              ones are read batch by batch and never copied whole;
            - a function of tf.distribute.InputContext that returns this worker's own data set,
              batched by `context.get_per_replica_batch_size(global_batch_size)` (or of single
              rows, with `batched=False`). Shuffling and mapping batches is its own matter.
        split: the split of a TFDS data set, such as "train", "test" or "train[:80%]". For other
            sources it is a name only.
        global_batch_size: rows of a step over all replicas of all workers.
        num_workers: number of workers.
        rank: this worker.
        local_replicas: number of replicas of this worker.
        options: the `data` group of the Config; None means its defaults.
        seed: of the order of rows, the same on every worker. Without one several workers use a
            fixed seed, and a single process draws one.
        training: whether this is training data, which is shuffled, and whose last batch is
            dropped with `drop_remainder`; other data keeps order and rows. None means: the
            split's name begins with "train".
        map_fn: applied to each row that this worker keeps, in parallel.
        batched: True if the data set comes in global batches (with shard="local": in this
            worker's batches), which are then only divided; False if what looks like batches are
            rows.
        repeat: whether the data set goes on for ever; then `fit` needs `steps_per_epoch`.
        steps: length of an epoch in steps, at most what the data has unless it repeats.
        start_epoch: number of the first epoch, which decides its order.
        as_supervised: (input, label) pairs of a TFDS data set instead of dicts; None means pairs
            where it defines them.
        exchange: gives every worker the texts of all. If it is there, the workers compare their
            data before anything is read, and agree on the number of steps.
        **overrides: fields of `options` to change, such as `shard="local"` or `shuffle=False`.
            "global" means that every worker brings the same data and takes its part, "local" that
            it brings its own part, "none" that every worker reads everything in an order of its
            own.

    Returns:
        The batches of this worker, with an auto-shard policy of OFF.

    Raises:
        DataError: the source, split or sizes are wrong, or the workers' data does not match.
        ConfigError: an override is unknown or wrong.
    """
    opened, plan, facts = plan_dataset(
        source,
        split=split,
        global_batch_size=global_batch_size,
        num_workers=num_workers,
        rank=rank,
        local_replicas=local_replicas,
        options=options,
        seed=seed,
        training=training,
        map_fn=map_fn,
        batched=batched,
        repeat=repeat,
        steps=steps,
        start_epoch=start_epoch,
        as_supervised=as_supervised,
        exchange=exchange,
        **overrides,
    )
    dataset = pipeline.build(opened, plan)
    dataset._tfdist_info = facts
    logger.info("Data: %s", facts)
    return dataset


def plan_dataset(
    source: Any,
    *,
    split: str = "train",
    global_batch_size: int,
    num_workers: int,
    rank: int,
    local_replicas: int = 1,
    options: Data | None = None,
    seed: int | None = None,
    training: bool | None = None,
    map_fn: Callable[..., Any] | None = None,
    batched: bool | None = None,
    repeat: bool = False,
    steps: int | None = None,
    start_epoch: int = 0,
    as_supervised: bool | None = None,
    exchange: Exchange | None = None,
    **overrides: Any,
) -> tuple[Source, Plan, DataInfo]:
    """Takes all decisions of `make_dataset`, whose arguments these are, and builds nothing."""
    options = dataclasses.replace(options or Data(), **overrides)
    training = split.startswith("train") if training is None else training
    share = Share(global_batch_size, num_workers, rank)
    _check(share, local_replicas, steps, start_epoch)
    opened, place = open_source(
        options.dataset if source is None else source,
        Place(share, options.shard if num_workers > 1 else "global", local_replicas),
        split=split,
        batched=batched,
        data_dir=options.data_dir,
        in_memory=options.cache,
        shuffled=options.shuffle and training,
        as_supervised=as_supervised,
    )
    shared = place.shard == "global"
    shuffle = options.shuffle and training and not opened.batched
    order = plans.shuffle_seed(seed, num_workers) if shuffle else None
    plan = Plan(
        share=share if shared else Share(share.batch),
        seed=order if order is None or shared else plans.local_seed(order, rank),
        drop_remainder=options.drop_remainder and training,
        repeat=repeat,
        steps=None,
        refill=False,
        start_epoch=start_epoch,
        map_fn=_row_function(opened, map_fn),
        options=options,
    )
    claim = Claim(
        shard=place.shard,
        rows=-1 if opened.count is None else opened.count,
        steps=-1,
        batch=global_batch_size,
        order="as it is" if order is None else f"seed {order}",
        split=split,
        content=opened.fingerprint if isinstance(opened, Rows) else "",
    )
    alone = num_workers == 1
    plan = steps_module.settle(plan, opened, claim, steps, None if alone else exchange, alone=alone)
    facts = DataInfo(
        rows=None if opened.batched else opened.count,
        steps=steps if steps and (repeat or opened.infinite) else plan.steps,
        global_batch_size=global_batch_size,
        num_workers=num_workers,
        rank=rank,
        name=opened.name,
    )
    return opened, plan, facts


def info_of(dataset: tf.data.Dataset) -> DataInfo | None:
    """What `make_dataset` knows of a data set that it returned; None of any other."""
    return getattr(dataset, "_tfdist_info", None)


def steps_per_epoch(dataset: tf.data.Dataset) -> int:
    """Number of steps of an epoch, for `fit(..., steps_per_epoch=...)`.

    Args:
        dataset: a data set, from `make_dataset` or any other that is batched.

    Returns:
        The steps. For repeating data from `make_dataset`, those of one pass or its `steps`.

    Raises:
        DataError: the data never ends, or its size is unknown.
    """
    facts = info_of(dataset)
    if facts is not None and facts.steps is not None:
        return facts.steps
    count = int(dataset.cardinality())
    if count >= 0:
        return count
    endless = count == tf.data.INFINITE_CARDINALITY
    raise DataError(
        explain(
            "The data never ends" if endless else "The size of the data is unknown",
            received=f"a data set of {'infinite' if endless else 'unknown'} cardinality",
            fix="Say `steps=` when making it, or give its size with "
            "tf.data.experimental.assert_cardinality",
        )
    )


def _check(share: Share, local_replicas: int, steps: int | None, start_epoch: int) -> None:
    replicas = share.num_workers * local_replicas
    if local_replicas < 1 or share.batch < local_replicas or share.batch % local_replicas:
        raise DataError(
            explain(
                "The global batch must divide evenly over the replicas",
                received=f"global_batch_size={share.global_batch}, replicas={replicas}",
                fix=f"Use a multiple of {max(replicas, 1)}, or give per_replica_batch_size instead",
            )
        )
    for name, value, least in (("steps", steps, 1), ("start_epoch", start_epoch, 0)):
        if value is not None and (not isinstance(value, int) or value < least):
            raise DataError(
                explain(
                    f"`{name}` must be an integer from {least}",
                    received=repr(value),
                    fix="Leave it out for the default",
                )
            )


def _row_function(source: Source, map_fn: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if map_fn is not None and source.batched:
        raise DataError(
            explain(
                "`map_fn` takes single rows, and the data comes in batches",
                received="map_fn with batches",
                fix="Map before batching, or map the returned data set",
            )
        )
    return map_fn
