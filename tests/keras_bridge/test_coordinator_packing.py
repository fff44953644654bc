"""Gradients and values in few tensors."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.keras_bridge.coordinator.packing import Packing


def test_what_is_packed_comes_out_again() -> None:
    tensors = [
        tf.constant([[1.0, 2.0], [3.0, 4.0]]),
        None,
        tf.IndexedSlices(tf.ones([2, 3]), tf.constant([4, 1]), tf.constant([9, 3])),
        tf.constant(7, tf.int64),
        tf.constant([5.0, 6.0]),
        tf.constant([1.5], tf.float16),
    ]
    packing = Packing()
    packed = packing.pack(tensors)
    assert sorted(packed) == ["float16", "float32", "int64", "sparse_00002"]
    found = packing.unpack(packed)
    assert found[1] is None
    assert isinstance(found[2], tf.IndexedSlices)
    np.testing.assert_array_equal(found[2].indices, [4, 1])
    for index in (0, 3, 4, 5):
        assert found[index].dtype == tensors[index].dtype
        np.testing.assert_array_equal(found[index], tensors[index])
