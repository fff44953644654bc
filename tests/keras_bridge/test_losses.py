"""Losses: the mean over the replicas of what each computes is one device's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from tfdist import keras_bridge
from tfdist.keras_bridge import losses
from tfdist.keras_bridge.context import BatchContext, entered
from tfdist.keras_bridge.input import row_range

SPLITS = pytest.mark.parametrize(("rows", "replicas"), [(8, 2), (7, 2), (8, 3), (1, 2), (2, 4)])
rng = np.random.default_rng(0)
TRUE, PREDICTED = (rng.normal(size=(8, 3)).astype("float32") for _ in range(2))
WEIGHTS = rng.uniform(size=8).astype("float32")


@pytest.fixture(autouse=True)
def bridge() -> None:
    keras_bridge.install()


def mean_over_replicas(
    function: Callable[..., Any], rows: int, replicas: int, compiled: bool = True
) -> float:
    """The mean over the replicas of `function(true, predicted, weights)` on their rows."""
    total = 0.0
    for i in range(replicas):
        first, last = row_range(rows, i, replicas)
        with entered(BatchContext(replicas, last - first, rows, in_compile_loss=compiled)):
            parts = (tf.constant(array[first:last]) for array in (TRUE, PREDICTED, WEIGHTS))
            total += float(function(*parts)) / replicas
    return total


@SPLITS
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_reductions(rows: int, replicas: int, reduction: str, weighted: bool) -> None:
    loss = keras.losses.MeanSquaredError(reduction=reduction)

    def value(true: Any, predicted: Any, weights: Any) -> Any:
        return loss(true, predicted, weights if weighted else None)

    want = float(value(TRUE[:rows], PREDICTED[:rows], WEIGHTS[:rows]))
    assert mean_over_replicas(value, rows, replicas) == pytest.approx(want, rel=1e-5)


@SPLITS
def test_a_loss_that_is_not_reduced_counts_every_row_once(rows: int, replicas: int) -> None:
    """`compile` adds the entries of such a loss up."""
    loss = keras.losses.MeanSquaredError(reduction=None)
    want = float(tf.reduce_sum(loss(TRUE[:rows], PREDICTED[:rows])))
    got = mean_over_replicas(lambda t, p, _: tf.reduce_sum(loss(t, p)), rows, replicas)
    assert got == pytest.approx(want, rel=1e-5)


def test_a_loss_that_is_not_reduced_is_the_steps_own_outside_of_compile() -> None:
    loss = keras.losses.MeanSquaredError(reduction=None)
    with entered(BatchContext(2, 4, 7)) as context:
        np.testing.assert_array_equal(loss(TRUE, PREDICTED), np.square(TRUE - PREDICTED).mean(1))
    assert not context.weighted


class Scalar(keras.losses.Loss):
    """Returns one number for the batch."""

    def __init__(self, reduce: Callable[..., Any]) -> None:
        super().__init__()
        self.reduce = reduce

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.reduce(tf.square(y_true - y_pred))


@SPLITS
@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_losses_of_one_number(rows: int, replicas: int, kind: str) -> None:
    loss = Scalar(tf.reduce_mean if kind == "mean" else tf.reduce_sum)
    assert losses.scalar_kind(loss) == "mean", "unless something else was found out"
    losses.set_scalar_kind(loss, kind)
    want = float(loss(TRUE[:rows], PREDICTED[:rows]))
    got = mean_over_replicas(lambda t, p, _: loss(t, p), rows, replicas)
    assert got == pytest.approx(want, rel=1e-5)


@SPLITS
def test_regularisation_counts_once(rows: int, replicas: int) -> None:
    got = mean_over_replicas(
        lambda *_: keras_loss.scale_loss_for_distribution(tf.constant(3.0)), rows, replicas
    )
    assert got == pytest.approx(3.0)


@SPLITS
def test_tensorflows_own_recipe(rows: int, replicas: int) -> None:
    """P43: `compute_average_loss` with the global batch's size, in a train_step."""
    want = float(np.square(TRUE[:rows] - PREDICTED[:rows]).mean())

    def given(true: Any, predicted: Any, _: Any) -> Any:
        values = tf.reduce_mean(tf.square(true - predicted), -1)
        return tf.nn.compute_average_loss(values, global_batch_size=rows)

    assert mean_over_replicas(given, rows, replicas) == pytest.approx(want, rel=1e-5)


def test_the_loss_tracker_gets_the_mean_of_a_replicas_rows() -> None:
    with entered(BatchContext(2, 4, 7)):
        weighted = keras_loss.scale_loss_for_distribution(tf.constant(3.0))
        assert float(weighted) == pytest.approx(3.0 * 8 / 7)
        assert float(keras_loss.unscale_loss_for_distribution(weighted)) == pytest.approx(3.0)


def test_a_step_knows_that_its_loss_is_weighted() -> None:
    for loss in (keras.losses.MeanSquaredError(), Scalar(tf.reduce_mean)):
        with entered(BatchContext(2, 4, 7)) as context:
            loss(TRUE, PREDICTED)
        assert context.weighted
        assert context.loss_stack == []


def test_a_loss_that_fails_leaves_no_trace() -> None:
    def fail(_: Any) -> Any:
        raise ValueError("bug")

    with entered(BatchContext(2, 4, 7)) as context, pytest.raises(ValueError, match="bug"):
        Scalar(fail)(TRUE, PREDICTED)
    assert context.loss_stack == []


def test_losses_are_recorded_before_they_are_reduced() -> None:
    mse, scalar = keras.losses.MeanSquaredError(), Scalar(tf.reduce_mean)
    with losses.record_losses() as records:
        mse(TRUE, PREDICTED)
        scalar(TRUE, PREDICTED)
    assert [loss for loss, _ in records] == [mse, scalar]
    assert [tuple(value.shape) for _, value in records] == [(8,), ()]
    mse(TRUE, PREDICTED)
    assert len(records) == 2


def test_outside_of_a_step_keras_computes_as_ever() -> None:
    loss = keras.losses.MeanSquaredError()
    want = np.square(TRUE - PREDICTED).mean()
    assert float(loss(TRUE, PREDICTED)) == pytest.approx(float(want))
    assert float(keras_loss.scale_loss_for_distribution(tf.constant(3.0))) == 3.0
    assert float(tf.nn.scale_regularization_loss(tf.constant(3.0))) == 3.0
