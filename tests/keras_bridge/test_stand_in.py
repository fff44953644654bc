"""A replica without rows computes on a row of zeros, and leaves no trace of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_bridge import stand_in

CASES = "keras_bridge.replica_cases"


@pytest.mark.parametrize(
    ("rows", "may"), [(0, True), (3, False), (tf.constant(0), True), (tf.constant(3), True)]
)
def test_only_a_known_number_of_rows_rules_none_out(rows: Any, may: bool) -> None:
    assert stand_in.may_be_empty(rows) == may


@pytest.mark.parametrize("wrap", [int, tf.constant])
def test_no_rows_become_one_of_zeros(wrap: Any) -> None:
    ragged = tf.ragged.constant([[1]])[:0]
    data = {"x": tf.ones((0, 2)), "y": tf.constant([], tf.int32), "s": tf.constant([], tf.string),
            "r": ragged, "none": None}  # fmt: skip
    found = stand_in.with_stand_in(data, wrap(0))
    assert found["x"].numpy().tolist() == [[0.0, 0.0]]
    assert found["y"].numpy().tolist() == [0]
    assert found["s"].numpy().tolist() == [b""]
    assert found["r"] is ragged
    assert found["none"] is None
    cut = stand_in.without_stand_in({"p": tf.ones((1, 3)), "scalar": tf.constant(1.0)}, wrap(0))
    assert tuple(cut["p"].shape) == (0, 3)
    assert float(cut["scalar"]) == 1.0


@pytest.mark.parametrize("wrap", [int, tf.constant])
def test_rows_pass_as_they_are(wrap: Any) -> None:
    data = (tf.ones((2, 2)), tf.constant([1, 2]))
    found = stand_in.without_stand_in(stand_in.with_stand_in(data, wrap(2)), wrap(2))
    for got, want in zip(found, data):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("jit", [False, True])
def test_a_step_without_rows_leaves_no_trace(mirrored: Any, jit: bool) -> None:
    """A convolution, a layer that counts what it sees, and metrics: one row on two replicas."""
    found = mirrored(f"{CASES}:one_row_of_an_image", jit=jit)
    assert found["seen"] == [1.0, 0.0], "the second replica saw nothing"
    assert found["mean"] == pytest.approx(found["prediction"])
    assert found["rows"] == 1
    np.testing.assert_allclose(found["weights"], found["by_hand"], rtol=1e-4, atol=1e-6)
