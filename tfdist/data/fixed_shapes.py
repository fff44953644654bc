"""Batches of one size for devices whose programs are compiled for it, such as TPUs.

A last batch of r rows is filled up to B with rows of zeros. Keras divides a batch's loss by B and
weighs it by B in the mean over the batches, so weight 1 for the real rows would leave the mean too
small: with N rows in n batches each real row weighs nB/N, and the mean over all of them is that of
the N rows alone.

    rows       x x x x | x x x x | x x 0 0        B = 4, n = 3, N = 10
    weights    c c c c | c c c c | c c 0 0        c = 12/10
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.errors import DataError, explain

__all__ = ["make", "pad"]

logger = logging.getLogger(__name__)


def pad(dataset: tf.data.Dataset, batch: int, rows: int | None = None) -> tf.data.Dataset:
    """Fills the last batch up with rows of weight 0.

    A loss over such data is that of the rows alone, and so are `weighted_metrics`. Metrics given as
    `metrics` don't see weights: under a strategy of fixed shapes the bridge tells them which rows
    have none (`keras_bridge.padding`).

    Args:
        dataset: batches (x, y) or (x, y, sample_weight) of `batch` rows, the last one maybe of fewer.
        batch: rows of a batch.
        rows: rows of all batches; None counts them by reading the data once.

    Returns:
        Batches (x, y, sample_weight) of exactly `batch` rows.

    Raises:
        DataError: the elements are not pairs or triples of dense tensors with a known rank, or the
            dataset does not end.
    """
    spec = dataset.element_spec
    leaves = tf.nest.flatten(spec)
    dense = all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves)
    if not isinstance(spec, tuple) or len(spec) not in (2, 3) or not dense:
        raise DataError(
            explain(
                "Only batches (x, y) or (x, y, sample_weight) of dense tensors can be filled up to "
                "one size",
                received=f"elements {spec}",
                fix="Yield pairs, or drop a last batch that is not full: drop_remainder=True",
            )
        )
    batches = int(dataset.cardinality())
    if batches == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            explain(
                "A dataset without end has no last batch to fill up",
                received="an infinite dataset",
                fix="Leave `repeat` out",
            )
        )
    if rows is None or batches < 0:
        batches, rows = _counts(dataset)
    scale = batches * batch / rows if rows else 1.0

    def filled(*data: Any) -> tuple[Any, Any, Any]:
        present = tf.shape(tf.nest.flatten(data[0])[0])[0]
        weights = data[2] if len(data) == 3 else tf.ones([present], tf.float32)
        weights = tf.cast(weights, tf.float32) * scale

        def fill(leaf: Any) -> Any:
            missing = [[0, batch - present], *([0, 0] for _ in leaf.shape[1:])]
            if leaf.dtype == tf.string:
                result = tf.concat([leaf, tf.fill([batch - present, *leaf.shape[1:]], "")], 0)
            else:
                result = tf.pad(leaf, missing)
            return tf.ensure_shape(result, [batch, *leaf.shape[1:]])

        x, y, w = tf.nest.map_structure(fill, (data[0], data[1], weights))
        return x, y, w

    return dataset.map(filled, num_parallel_calls=tf.data.AUTOTUNE)


def _counts(dataset: tf.data.Dataset) -> tuple[int, int]:
    """The numbers of batches and rows, by reading them."""
    counted = dataset.reduce(
        (tf.constant(0, tf.int64), tf.constant(0, tf.int64)),
        lambda total, *data: (
            total[0] + 1,
            total[1] + tf.shape(tf.nest.flatten(data)[0], out_type=tf.int64)[0],
        ),
    )
    return int(counted[0]), int(counted[1])


def make(
    make_dataset: Callable[..., tf.data.Dataset],
    source: Any,
    *,
    split: str,
    training: bool | None = None,
    repeat: bool = False,
    **options: Any,
) -> tf.data.Dataset:
    """Makes a data set whose batches all have the same number of rows.

    Args:
        make_dataset: `tfdist.data.make_dataset`, whose arguments these are.
        source: the source.
        split: which part of it.
        training: whether it is for training: then the rows of a last batch that is not full are
            left out (others in each epoch, as the order changes). Otherwise that batch is filled up,
            see `pad`.
        repeat: whether it goes on for ever.
        **options: the other arguments.
    """
    training = split.startswith("train") if training is None else training
    if training or repeat:
        dropping = {**options, "drop_remainder": True}
        return make_dataset(source, split=split, training=training, repeat=repeat, **dropping)
    dataset = make_dataset(source, split=split, training=False, **options)
    info = dataset._tfdist_info
    batch = options["global_batch_size"] // options["num_workers"]
    spec = tf.nest.flatten(dataset.element_spec)
    if all(isinstance(leaf, tf.TensorSpec) and leaf.shape[:1] == [batch] for leaf in spec):
        return dataset  # All batches are full.
    logger.info(
        "The last batch is filled up with rows of weight 0, which losses and metrics leave out; "
        "predict() has them at the end"
    )
    alone = info.num_workers == 1 and options.get("steps") is None
    padded = pad(dataset, batch, info.rows if alone else None)
    padded._tfdist_info = info
    return padded
