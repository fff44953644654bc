"""Optimizers in a hand-written `strategy.run` loop: gradients are summed first, then all the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_bridge import optimizer

CASES = "keras_bridge.replica_cases"


@pytest.mark.parametrize(
    ("clip", "want"),
    [
        ({"clipnorm": 1.0}, [-0.6, -0.8]),
        ({"global_clipnorm": 1.0}, [-0.6, -0.8]),
        ({"clipvalue": 3.5}, [-3.0, -3.5]),
    ],
)
def test_clipping_is_of_the_sum(mirrored: Any, clip: dict[str, float], want: list[float]) -> None:
    for copy in mirrored(f"{CASES}:clipped", **clip):
        assert copy == pytest.approx(want, rel=1e-5)


def test_an_overflow_on_any_replica_is_skipped_on_all(mirrored: Any) -> None:
    found = mirrored(f"{CASES}:overflow")
    assert found["scales"] == [8.0, 4.0, 2.0, 2.0]
    first, second = found["weights"]
    # Two good steps: the sum of the gradients, 2, over the scale of that step.
    assert first == second == pytest.approx([1.0 - 2 / 8 - 2 / 2])
    assert found["iterations"] == 2


def test_sparse_and_absent_gradients(mirrored: Any) -> None:
    table, untouched = mirrored(f"{CASES}:sparse_and_absent")
    assert table == [[[-1.0], [-1.0], [0.0]]] * 2
    assert untouched == [[7.0]] * 2


def test_accumulation(mirrored: Any) -> None:
    values = mirrored(f"{CASES}:accumulated")
    # Each pair of steps applies the mean of two sums of 1 + 2.
    assert values == [[[0.0]] * 2, [[-3.0]] * 2, [[-3.0]] * 2, [[-6.0]] * 2]


def test_moving_averages_overwrite(mirrored: Any) -> None:
    values = mirrored(f"{CASES}:averaged_and_overwritten")
    # The average of -2 (the first step), then -4 with momentum 1/2, from 0: -1, -2.5.
    assert values[0] == [[-2.0]] * 2
    assert values[1][0] == values[1][1]
    assert values[1][0][0] > -4.0


def test_weight_decay_counts_once(mirrored: Any) -> None:
    for copy in mirrored(f"{CASES}:decayed"):
        assert copy == pytest.approx([2.0 - 2.0 * 0.5 * 0.1 - 0.5 * 2.0])


def test_constraints(mirrored: Any) -> None:
    assert mirrored(f"{CASES}:constrained") == [[[0.0]]] * 2


def test_mirrored_numbers_can_be_read(mirrored: Any) -> None:
    assert mirrored(f"{CASES}:numbers") == (0.25, 3)


def test_gradients_of_no_rows_count_nothing() -> None:
    bad = tf.constant([np.nan, np.inf])
    np.testing.assert_array_equal(optimizer._scaled(bad, tf.constant(0.0), safe=True), [0.0, 0.0])
    slices = tf.IndexedSlices(bad[:, None], tf.constant([0, 1]), tf.constant([3, 1]))
    scaled = optimizer._scaled(slices, tf.constant(0.0), safe=True)
    np.testing.assert_array_equal(scaled.values, [[0.0], [0.0]])
    np.testing.assert_array_equal(scaled.indices, [0, 1])


def test_gradients_keep_their_dtype() -> None:
    for dtype in (tf.float16, tf.bfloat16, tf.float64):
        value = tf.constant([2.0], dtype)
        assert optimizer._scaled(value, tf.constant(0.5), safe=False).dtype == dtype
