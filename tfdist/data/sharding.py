"""Cuts global batches into the workers' shares, inside the pipeline."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.data.shares import Share

__all__ = ["empty_like", "mark_local", "own_elements", "own_part_of_batches", "take_rows"]

_OFF = tf.data.experimental.AutoShardPolicy.OFF


def mark_local(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Marks a data set as this worker's own part of each global batch.

    The mark is `AutoShardPolicy.OFF`: unlike an attribute it survives `map` and the like. On one
    worker the part is the whole batch.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _OFF
    options.deterministic = True
    return dataset.with_options(options)


def take_rows(batch: Any, start: Any, stop: Any) -> Any:
    """Rows [start, stop) of every component of a batch."""
    return tf.nest.map_structure(lambda item: _slice(item, start, stop), batch)


def _slice(item: Any, start: Any, stop: Any) -> Any:
    if isinstance(item, tf.SparseTensor):
        shape = item.dense_shape
        start = tf.minimum(tf.cast(start, tf.int64), shape[0])
        stop = tf.minimum(tf.cast(stop, tf.int64), shape[0])
        zeros = tf.zeros_like(shape[1:])
        cut = tf.sparse.slice(
            item,
            tf.concat([[start], zeros], axis=0),
            tf.concat([[stop - start], shape[1:]], axis=0),
        )
        return tf.SparseTensor(
            cut.indices, cut.values, tf.ensure_shape(cut.dense_shape, [len(item.shape)])
        )
    return item[start:stop]


def row_count(batch: Any) -> tf.Tensor:
    """Number of rows of a batch, from its first component."""
    item = tf.nest.flatten(batch)[0]
    if isinstance(item, tf.RaggedTensor):
        return tf.cast(item.nrows(), tf.int64)
    if isinstance(item, tf.SparseTensor):
        return tf.cast(item.dense_shape[0], tf.int64)
    return tf.shape(item, out_type=tf.int64)[0]


def own_elements(elements: tf.data.Dataset, share: Share) -> tf.data.Dataset:
    """Keeps this worker's elements of each global batch; nothing is batched."""
    if share.num_workers == 1:
        return elements
    size, first = share.global_batch, share.offset

    def mine(index: tf.Tensor, *_: Any) -> tf.Tensor:
        position = index % size
        return tf.logical_and(position >= first, position < first + share.batch)

    def element(_: tf.Tensor, *value: Any) -> Any:
        # `enumerate` makes pairs, and a tuple element arrives as one argument of its own.
        return value[0] if len(value) == 1 else value

    return elements.enumerate().filter(mine).map(element)


def own_part_of_batches(batches: tf.data.Dataset, share: Share) -> tf.data.Dataset:
    """Takes this worker's rows of data that already comes in global batches."""
    if share.num_workers == 1:
        return batches

    def part(*batch: Any) -> Any:
        value = batch[0] if len(batch) == 1 else batch
        rows = row_count(value)
        with tf.control_dependencies(
            [
                tf.debugging.assert_less_equal(
                    rows,
                    tf.constant(share.global_batch, tf.int64),
                    message="tfdist: a batch of the data set has more rows than global_batch_size",
                )
            ]
        ):
            start = tf.minimum(tf.constant(share.offset, tf.int64), rows)
        return take_rows(value, start, tf.minimum(start + share.batch, rows))

    return batches.map(part, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def empty_like(elements: tf.data.Dataset) -> tf.data.Dataset:
    """One batch without rows, of the kind that `elements` would be batched to.

    It is cut from the first element, so that dimensions that vary have a size that occurs.
    """

    def nothing(*batch: Any) -> Any:
        return take_rows(batch[0] if len(batch) == 1 else batch, 0, 0)

    return elements.take(1).batch(1).map(nothing)
