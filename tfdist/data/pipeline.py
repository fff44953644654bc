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

from tfdist.data import batching, sharding
from tfdist.data.arrays import Rows
from tfdist.data.epochs import per_epoch
from tfdist.data.plans import Plan
from tfdist.data.sources import Source
from tfdist.data.streams import Stream, Stripes, element_bytes

__all__ = ["build"]

# Elements of a stream are kept in memory when all of them are known to fit in this many bytes.
CACHE_LIMIT = 2**30


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
def build(source: Source, plan: Plan) -> tf.data.Dataset:
    """Builds this worker's batches.

    Args:
        source: an opened source.
        plan: the decisions.

    Returns:
        The data set, marked as this worker's own part.
    """
    dataset = _epochs(_stages(source, plan), plan)
    endless = plan.repeat or source.infinite
    if endless or (plan.steps is not None and (source.count is not None or plan.refill)):
        count = tf.data.INFINITE_CARDINALITY if endless else plan.steps
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    if plan.options.prefetch:
        dataset = dataset.prefetch(plan.options.prefetch)
    return sharding.mark_local(dataset)


def _stages(source: Source, plan: Plan) -> _Stages:
    if isinstance(source, Rows):
        return _rows_stages(source, plan)
    if isinstance(source, Stripes):
        return _stripes_stages(source, plan)
    return _stream_stages(source, plan)


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
    maps = batching.converted(plan.map_fn)

    def ordered(positions: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        if plan.seed is None:
            return positions
        key = tf.stack([tf.constant(plan.seed, tf.int64), epoch])
        return tf.random.experimental.index_shuffle(positions, key, count - 1)

    def batch(step: tf.Tensor, epoch: tf.Tensor) -> Any:
        start, stop = share.bounds(step, count, tf.minimum)
        # One position more, dropped again: index_shuffle refuses to shuffle none.
        positions = ordered(tf.concat([tf.range(start, stop), [0]], axis=0), epoch)[:-1]
        full = batching.full_rows(covered, plan)
        return rows.gather(positions if full is None else tf.ensure_shape(positions, [full]))

    def row(number: tf.Tensor, epoch: tf.Tensor) -> Any:
        step, within = number // share.batch, number % share.batch
        return rows.gather(ordered(step * share.global_batch + share.offset + within, epoch))

    def finish(numbered: tf.data.Dataset) -> tf.data.Dataset:
        if not maps:
            return batching.map_rows(numbered.enumerate(), batch, plan)
        # The source's first row stands in where this worker has none to derive a batch from.
        sample = tf.data.Dataset.range(1).map(rows.gather)
        return batching.batch(numbered.enumerate().map(row), sample, maps, covered, plan)

    # As many elements as there are batches or own rows; all they say is the epoch.
    size = share.own_rows(covered) if maps else steps
    return _Stages(lambda epoch: tf.data.Dataset.from_tensors(epoch).repeat(size), finish)


def _stream_stages(stream: Stream, plan: Plan) -> _Stages:
    share, count, infinite = plan.share, stream.count, stream.infinite
    if stream.batched:
        own = sharding.own_part_of_batches(stream.dataset, share)
        return _Stages(lambda _: own, lambda batches: batching.limit(batches, plan))
    source = _cached(stream, plan)
    maps = batching.converted(stream.decode, plan.map_fn)
    covered = None if count is None else min(count, (plan.steps or 0) * share.global_batch)

    def order(epoch: tf.Tensor) -> tf.data.Dataset:
        elements = source
        if plan.seed is not None:
            elements = batching.shuffle(elements, plan.options.shuffle_buffer, plan.seed, epoch)
        return elements if covered == count else elements.take(covered)

    def finish(elements: tf.data.Dataset) -> tf.data.Dataset:
        if count is None and not infinite:
            return batching.limit(batching.of_unknown_size(elements, share, maps, plan), plan)
        return batching.batch(sharding.own_elements(elements, share), source, maps, covered, plan)

    return _Stages(order, finish)


def _stripes_stages(stripes: Stripes, plan: Plan) -> _Stages:
    share, total = plan.share, len(stripes.parts)
    divided = total % share.num_workers == 0
    size = total // share.num_workers if divided else total
    first = share.rank * size if divided else 0
    own = range(first, first + size)
    rows = share.global_batch // total  # of one stripe in one batch
    steps = plan.steps or 0
    # All batches are full but the last one, which has what is left of each stripe.
    covered = min(stripes.count, steps * share.global_batch)
    kept = [min(stripes.counts[number], steps * rows) for number in own]
    turns = tf.data.Dataset.range(steps * rows * size).map(lambda i: i // rows % size)
    maps = batching.converted(stripes.decode, plan.map_fn)

    def order(epoch: tf.Tensor) -> tf.data.Dataset:
        buffer = max(plan.options.shuffle_buffer // total, 1)
        parts = [
            batching.shuffle(stripes.parts[number], buffer, (plan.seed or 0) + number, epoch).take(
                count
            )
            for number, count in zip(own, kept)
        ]
        return tf.data.Dataset.choose_from_datasets(parts, turns, stop_on_empty_dataset=False)

    def finish(elements: tf.data.Dataset) -> tf.data.Dataset:
        sample = stripes.parts[own[0]]
        if not divided:
            return batching.batch(
                sharding.own_elements(elements, share), sample, maps, covered, plan
            )
        for function in maps:
            elements, sample = batching.map_rows(elements, function, plan), sample.map(function)
        full = batching.full_rows(covered, plan) is not None
        batches = elements.batch(share.batch, drop_remainder=full)
        if sum(kept) > (steps - 1) * share.batch:
            return batches
        return batches.concatenate(sharding.empty_like(sample))

    return _Stages(order, finish)


def _cached(stream: Stream, plan: Plan) -> tf.data.Dataset:
    dataset, count = stream.dataset, stream.count
    fits = count is not None and count * element_bytes(dataset.element_spec) <= CACHE_LIMIT
    return dataset.cache() if plan.options.cache and fits else dataset
