"""Which losses can be put together from parts of a batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.errors import LossError
from tfdist.keras_bridge import losses, probe

A, B = np.array([1.0, 2.0, 4.0, 1.0]), np.array([3.0, 9.0, 1.0, 5.0])
BOTH = np.concatenate([A, B])


class Named(keras.losses.Loss):
    """A loss of a user's."""


def classified(function: Any) -> str:
    loss = Named(name="mine")
    probe._classify(loss, 1e-4, *(np.asarray(function(part)) for part in (A, B, BOTH)))
    return losses.scalar_kind(loss)


def test_means_and_sums_are_told_apart() -> None:
    assert classified(np.mean) == "mean"
    assert classified(np.sum) == "sum"


def test_a_value_per_example_needs_no_kind() -> None:
    assert classified(np.square) == "mean"


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda v: np.sqrt(np.mean(v**2)), "neither the mean nor the sum"),
        (np.max, "neither the mean nor the sum"),
        (lambda v: np.sum(v) + 5.0, "neither the mean nor the sum"),
        (lambda v: v - v.mean(), "compares the rows"),
        (lambda v: v / v.max(), "compares the rows"),
    ],
)
def test_losses_that_depend_on_the_whole_batch_are_refused(function: Any, problem: str) -> None:
    with pytest.raises(LossError, match=rf"'mine'.*{problem}.*one value per example"):
        classified(function)


@pytest.mark.parametrize(
    ("loss", "known"),
    [
        (lambda: keras.losses.MeanSquaredError(), True),
        (lambda: keras.losses.SparseCategoricalCrossentropy(), True),
        (lambda: keras.losses.get("mae"), None),
        (lambda: keras.losses.Circle(), False),
        (lambda: keras.losses.Dice(), False),
        (lambda: keras.losses.Tversky(), False),
        (lambda: Named(), False),
    ],
)
def test_keras_own_row_losses_are_not_tried(loss: Any, known: bool | None) -> None:
    made = loss()
    if known is None:  # a function: `compile` wraps it
        made, known = probe._FunctionLoss(made), True
    assert probe._is_row_by_row(made) == known


def test_a_users_function_is_tried() -> None:
    made = probe._FunctionLoss(lambda y, p: tf.reduce_mean(tf.square(y - p)))
    assert not probe._is_row_by_row(made)
