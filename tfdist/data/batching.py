"""The steps that all pipelines are made of: shuffle, map, batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.data import sharding
from tfdist.data.plans import Plan
from tfdist.data.shares import Share

__all__ = ["batch", "converted", "full_rows", "limit", "map_rows", "of_unknown_size", "shuffle"]

_SEED_STRIDE = 1_000_003
_FIXED_GRAPH_SEED = 1

Maps = list[Callable[..., Any]]


def shuffle(elements: tf.data.Dataset, buffer: int, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    """Shuffles one epoch's elements; called where its part of the pipeline is traced."""
    if not tf.executing_eagerly():
        # tf.data mixes in the seed of the graph, which comes from tf.random.set_seed and may
        # differ between workers. This graph is the epoch's own.
        tf.random.set_seed(_FIXED_GRAPH_SEED)
    mixed = tf.constant(seed * _SEED_STRIDE % 2**62, tf.int64) + epoch
    return elements.shuffle(buffer, seed=mixed, reshuffle_each_iteration=False)


def converted(*functions: Callable[..., Any] | None) -> Maps:
    """The functions that are there, with AutoGraph for theirs, which is off for ours."""
    return [tf.function(function) for function in functions if function is not None]


def map_rows(dataset: tf.data.Dataset, function: Callable[..., Any], plan: Plan) -> tf.data.Dataset:
    """Maps in parallel, in order."""
    return dataset.map(function, num_parallel_calls=plan.options.parallel_calls, deterministic=True)


def batch(
    elements: tf.data.Dataset,
    sample: tf.data.Dataset,
    maps: Maps,
    covered: int | None,
    plan: Plan,
) -> tf.data.Dataset:
    """Maps and batches this worker's elements, with a last step of no rows where it has none.

    Args:
        elements: what this worker keeps.
        sample: elements of the source, to tell what a batch without rows is like.
        maps: functions of an element, in order.
        covered: rows of the whole source that an epoch uses; None without end.
        plan: the plan.
    """
    share = plan.share
    for function in maps:
        elements = map_rows(elements, function, plan)
    all_full = full_rows(covered, plan) is not None
    batches = elements.batch(share.batch, drop_remainder=all_full)
    if covered is None or all_full or share.last_rows(covered):
        return batches
    for function in maps:
        sample = sample.map(function)
    return batches.concatenate(sharding.empty_like(sample))


def of_unknown_size(
    elements: tf.data.Dataset, share: Share, maps: Maps, plan: Plan
) -> tf.data.Dataset:
    """Batches of a source whose end can't be foreseen: the last share may turn out empty.

    Therefore whole global batches are made, cut, and only then are this worker's rows mapped.
    """
    if share.num_workers == 1:
        for function in maps:
            elements = map_rows(elements, function, plan)
        return elements.batch(share.global_batch, drop_remainder=plan.drop_remainder)
    batches = elements.batch(share.global_batch, drop_remainder=plan.drop_remainder)
    if not maps:
        return sharding.own_part_of_batches(batches, share)

    def mapped(*batch: Any) -> tf.data.Dataset:
        value = batch[0] if len(batch) == 1 else batch
        rows = sharding.row_count(value)
        start = tf.minimum(tf.constant(share.offset, tf.int64), rows)
        stop = tf.minimum(start + share.batch, rows)
        own = tf.data.Dataset.from_tensor_slices(sharding.take_rows(value, start, stop))
        sample = tf.data.Dataset.from_tensor_slices(sharding.take_rows(value, 0, 1))
        for function in maps:
            own, sample = map_rows(own, function, plan), sample.map(function)
        nothing = sharding.empty_like(sample).take(tf.cast(start >= stop, tf.int64))
        return own.batch(share.batch).concatenate(nothing)

    return batches.flat_map(mapped)


def limit(batches: tf.data.Dataset, plan: Plan) -> tf.data.Dataset:
    """Ends an epoch after the plan's steps, and starts its data anew before if need be."""
    if plan.steps is None:
        return batches
    return (batches.repeat() if plan.refill else batches).take(plan.steps)


def full_rows(covered: int | None, plan: Plan) -> int | None:
    """Rows of every batch of this worker, if all are full; XLA likes to know them."""
    share = plan.share
    return share.batch if covered is None or covered % share.global_batch == 0 else None
