"""Puts the input pipeline together: order, sharding, map, batch.

    rows (found by number)   number of the batch -> this worker's row numbers -> rows -> batch
    stream                   elements -> shuffle -> this worker's elements -> map -> batch

Both give the same rows in the same order on any number of workers: the order is decided for the
whole job, and each worker then takes its share of every global batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.data import sharding
from tfdist.data.arrays import Rows
from tfdist.data.epochs import per_epoch
from tfdist.data.plans import Plan
from tfdist.data.shares import Share
from tfdist.data.streams import Stream, element_bytes

__all__ = ["build"]

# Elements of a stream are kept in memory when all of them are known to fit in this many bytes.
CACHE_LIMIT = 2**30
_SEED_STRIDE = 1_000_003
_FIXED_GRAPH_SEED = 1

Maps = list[Callable[..., Any]]


@dataclass(frozen=True)
class _Stages:
    """A pipeline in two parts.

    Only the first one depends on the epoch. It is traced into a function that starts anew each
    epoch, so what can be left out of it makes epochs start faster.

    Attributes:
        order: from the number of an epoch to its elements, in order.
        finish: from an epoch's elements to this worker's batches.
    """

    order: Callable[[tf.Tensor], tf.data.Dataset]
    finish: Callable[[tf.data.Dataset], tf.data.Dataset]


@tf.autograph.experimental.do_not_convert  # of this package's own functions
def build(source: Rows | Stream, plan: Plan) -> tf.data.Dataset:
    """Builds this worker's batches.

    Args:
        source: an opened source.
        plan: the decisions.

    Returns:
        The data set, marked as this worker's own part.
    """
    stages = (
        _rows_stages(source, plan) if isinstance(source, Rows) else _stream_stages(source, plan)
    )
    dataset = _epochs(stages, plan)
    endless = plan.repeat or source.infinite
    if endless or (plan.steps is not None and (source.count is not None or plan.refill)):
        count = tf.data.INFINITE_CARDINALITY if endless else plan.steps
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    if plan.options.prefetch:
        dataset = dataset.prefetch(plan.options.prefetch)
    return sharding.mark_local(dataset)


def _epochs(stages: _Stages, plan: Plan) -> tf.data.Dataset:
    if plan.seed is None:
        dataset = stages.finish(stages.order(tf.constant(0, tf.int64)))
        return dataset.repeat() if plan.repeat else dataset
    if plan.repeat:
        # A batch must not reach into the next epoch, so each epoch is finished by itself.
        return per_epoch(
            lambda epoch: stages.finish(stages.order(epoch)), start=plan.start_epoch, repeat=True
        )
    return stages.finish(per_epoch(stages.order, start=plan.start_epoch))


def _rows_stages(rows: Rows, plan: Plan) -> _Stages:
    share, steps = plan.share, plan.steps or 0
    count = tf.constant(rows.count, tf.int64)
    # Rows that all workers read in an epoch: of `steps` batches, of which the last may be short.
    covered = min(rows.count, steps * share.global_batch)
    maps = _converted(plan.map_fn)

    def ordered(positions: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        if plan.seed is None:
            return positions
        key = tf.stack([tf.constant(plan.seed, tf.int64), epoch])
        return tf.random.experimental.index_shuffle(positions, key, count - 1)

    def batch(step: tf.Tensor, epoch: tf.Tensor) -> Any:
        start, stop = share.bounds(step, count, tf.minimum)
        # One position more, dropped again: index_shuffle refuses to shuffle none.
        positions = ordered(tf.concat([tf.range(start, stop), [0]], axis=0), epoch)[:-1]
        full = _full_rows(covered, plan)
        return rows.gather(positions if full is None else tf.ensure_shape(positions, [full]))

    def row(number: tf.Tensor, epoch: tf.Tensor) -> Any:
        step, within = number // share.batch, number % share.batch
        return rows.gather(ordered(step * share.global_batch + share.offset + within, epoch))

    def finish(numbered: tf.data.Dataset) -> tf.data.Dataset:
        if not maps:
            return _map(numbered.enumerate(), batch, plan)
        # The source's first row stands in where this worker has none to derive a batch from.
        sample = tf.data.Dataset.range(1).map(rows.gather)
        return _batch(numbered.enumerate().map(row), sample, maps, covered, plan)

    # As many elements as there are batches or own rows; all they say is the epoch.
    size = share.own_rows(covered) if maps else steps
    return _Stages(lambda epoch: tf.data.Dataset.from_tensors(epoch).repeat(size), finish)


def _full_rows(covered: int | None, plan: Plan) -> int | None:
    """Rows of every batch of this worker, if all are full; XLA likes to know them."""
    share = plan.share
    return share.batch if covered is None or covered % share.global_batch == 0 else None


def _stream_stages(stream: Stream, plan: Plan) -> _Stages:
    share, count, infinite = plan.share, stream.count, stream.infinite
    if stream.batched:
        own = sharding.own_part_of_batches(stream.dataset, share)
        return _Stages(lambda _: own, lambda batches: _limit(batches, plan))
    source = _cached(stream, plan)
    maps = _converted(stream.decode, plan.map_fn)
    covered = None if count is None else min(count, (plan.steps or 0) * share.global_batch)

    def order(epoch: tf.Tensor) -> tf.data.Dataset:
        elements = source
        if plan.seed is not None:
            elements = _shuffle(elements, plan.options.shuffle_buffer, plan.seed, epoch)
        return elements if covered == count else elements.take(covered)

    def finish(elements: tf.data.Dataset) -> tf.data.Dataset:
        if count is None and not infinite:
            return _limit(_of_unknown_size(elements, share, maps, plan), plan)
        return _batch(sharding.own_elements(elements, share), source, maps, covered, plan)

    return _Stages(order, finish)


def _cached(stream: Stream, plan: Plan) -> tf.data.Dataset:
    dataset, count = stream.dataset, stream.count
    fits = count is not None and count * element_bytes(dataset.element_spec) <= CACHE_LIMIT
    return dataset.cache() if plan.options.cache and fits else dataset


def _shuffle(
    elements: tf.data.Dataset, buffer: int, seed: int, epoch: tf.Tensor
) -> tf.data.Dataset:
    if not tf.executing_eagerly():
        # tf.data mixes in the seed of the graph, which comes from tf.random.set_seed and may
        # differ between workers. This graph is the epoch's own.
        tf.random.set_seed(_FIXED_GRAPH_SEED)
    mixed = tf.constant(seed * _SEED_STRIDE % 2**62, tf.int64) + epoch
    return elements.shuffle(buffer, seed=mixed, reshuffle_each_iteration=False)


def _converted(*functions: Callable[..., Any] | None) -> Maps:
    """The functions that are there, with AutoGraph for theirs, which is off for ours."""
    return [tf.function(function) for function in functions if function is not None]


def _map(dataset: tf.data.Dataset, function: Callable[..., Any], plan: Plan) -> tf.data.Dataset:
    return dataset.map(function, num_parallel_calls=plan.options.parallel_calls, deterministic=True)


def _batch(
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
        elements = _map(elements, function, plan)
    all_full = _full_rows(covered, plan) is not None
    batches = elements.batch(share.batch, drop_remainder=all_full)
    if covered is None or all_full or share.last_rows(covered):
        return batches
    for function in maps:
        sample = sample.map(function)
    return batches.concatenate(sharding.empty_like(sample))


def _of_unknown_size(
    elements: tf.data.Dataset, share: Share, maps: Maps, plan: Plan
) -> tf.data.Dataset:
    """Batches of a source whose end can't be foreseen: the last share may turn out empty.

    Therefore whole global batches are made, cut, and only then are this worker's rows mapped.
    """
    if share.num_workers == 1:
        for function in maps:
            elements = _map(elements, function, plan)
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
            own, sample = _map(own, function, plan), sample.map(function)
        nothing = sharding.empty_like(sample).take(tf.cast(start >= stop, tf.int64))
        return own.batch(share.batch).concatenate(nothing)

    return batches.flat_map(mapped)


def _limit(batches: tf.data.Dataset, plan: Plan) -> tf.data.Dataset:
    if plan.steps is None:
        return batches
    return (batches.repeat() if plan.refill else batches).take(plan.steps)
