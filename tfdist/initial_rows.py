"""The first values of some rows of a table, without those of the others.

Keras's initializers draw with TensorFlow's stateless random numbers, whose Philox generator counts:

    flat value    0 1 2 3 | 4 5 6 7 | 8 9 10 11 | ...
    counter       c       | c + s   | c + 2s    | ...      s = 1, or 256 for truncated normals

so the values from row r on are drawn by starting the counter at the group that holds their first
number. They are drawn on the device that keeps them, and equal those of the whole table to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["can_draw_rows", "rows_initializer"]

_GROUP = 4  # numbers that Philox yields at once
_TRUNCATED_STRIDE = 256  # it skips so many groups, as truncating draws an unknown number of them
_PROBE = (24, 3)  # a small table that shows whether Keras still draws like this
_PROBED_ROWS = (7, 15)


@dataclass(frozen=True)
class _Draw:
    """How a kind of random initializer draws."""

    operation: Callable[..., Any]
    stride: int
    scale: Callable[[Any, Any], tuple[Any, Any]]
    """From the initializer and dtype: what standard numbers are multiplied with, what is added."""


def _range(initializer: Any, dtype: tf.DType) -> tuple[Any, Any]:
    low, high = (tf.cast(v, dtype) for v in (initializer.minval, initializer.maxval))
    return high - low, low


def _normal(initializer: Any, dtype: tf.DType) -> tuple[Any, Any]:
    return tf.cast(initializer.stddev, dtype), tf.cast(initializer.mean, dtype)


# Of exactly these classes: a subclass may draw otherwise.
_DRAWS = {
    keras.initializers.RandomUniform: _Draw(tf.raw_ops.StatelessRandomUniformV2, 1, _range),
    keras.initializers.RandomNormal: _Draw(tf.raw_ops.StatelessRandomNormalV2, 1, _normal),
    keras.initializers.TruncatedNormal: _Draw(
        tf.raw_ops.StatelessTruncatedNormalV2, _TRUNCATED_STRIDE, _normal
    ),
}
# They scale by the shape of the whole table, and draw as one of those above.
_SCALED = (
    keras.initializers.VarianceScaling,
    keras.initializers.GlorotUniform,
    keras.initializers.GlorotNormal,
    keras.initializers.HeUniform,
    keras.initializers.HeNormal,
    keras.initializers.LecunUniform,
    keras.initializers.LecunNormal,
)
_TRUNCATED_DEVIATION = 0.87962566103423978  # of a normal distribution cut off at 2 deviations
_SAME_EVERYWHERE = (
    keras.initializers.Zeros,
    keras.initializers.Ones,
    keras.initializers.Constant,
)


def can_draw_rows(initializer: Any, dtype: str) -> bool:
    """Returns whether `rows_initializer` knows how an initializer draws.

    It is tried out on a small table: should Keras or TensorFlow come to draw in another way, the
    answer is no, rather than other values.

    Args:
        initializer: a Keras initializer.
        dtype: of the table.
    """
    if type(initializer) in _SAME_EVERYWHERE:
        return np.ndim(getattr(initializer, "value", 0.0)) == 0
    if _plain(initializer, _PROBE) is None or not isinstance(initializer.seed, int):
        return False  # a SeedGenerator yields other numbers at each call
    first, last = _PROBED_ROWS
    whole = initializer(_PROBE, dtype=dtype)[first:last]
    draw = rows_initializer(initializer, first, _PROBE)
    rows = draw((last - first, _PROBE[1]), dtype=dtype)
    return bool(np.array_equal(np.asarray(whole), np.asarray(rows)))


def rows_initializer(initializer: Any, first: int, table: Sequence[int]) -> Callable[..., Any]:
    """Returns an initializer of the rows of a table from `first` on.

    Args:
        initializer: that of the whole table; `can_draw_rows` must have said yes.
        first: number of the first row.
        table: shape of the whole table.

    Returns:
        A function of the rows' shape and dtype.
    """
    if type(initializer) in _SAME_EVERYWHERE:
        return initializer
    plain = _plain(initializer, table)
    draw = _DRAWS[type(plain)]

    def rows(shape: Any, dtype: Any = None) -> tf.Tensor:
        dtype = tf.as_dtype(dtype or keras.config.floatx())
        count, width = (int(n) for n in shape)
        group, skipped = divmod(first * width, _GROUP)
        key, counter = _start(initializer.seed, group * draw.stride)
        numbers = draw.operation(
            shape=tf.constant([skipped + count * width], tf.int64),
            key=key,
            counter=counter,
            alg=tf.constant(tf.random.Algorithm.PHILOX.value),
            dtype=dtype,
        )
        if skipped:
            numbers = numbers[skipped:]  # a copy, so only where need be: shards are large
        factor, offset = draw.scale(plain, dtype)
        numbers = tf.reshape(numbers, (count, width)) * factor
        return numbers + offset

    return rows


def _plain(initializer: Any, table: Sequence[int]) -> Any | None:
    """Returns the initializer of `_DRAWS` that draws as this one does, or None."""
    if type(initializer) in _DRAWS:
        return initializer
    if type(initializer) not in _SCALED:
        return None
    fans = {"fan_in": table[0], "fan_out": table[1], "fan_avg": (table[0] + table[1]) / 2}
    scale = initializer.scale / max(1.0, fans[initializer.mode])
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return keras.initializers.RandomUniform(-limit, limit)
    deviation = math.sqrt(scale)
    if initializer.distribution == "untruncated_normal":
        return keras.initializers.RandomNormal(0.0, deviation)
    return keras.initializers.TruncatedNormal(0.0, deviation / _TRUNCATED_DEVIATION)


def _start(seed: int, steps: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns Philox's key and counter for Keras's seed, `steps` steps on."""
    # Keras draws with [seed, 0], brought into the range of int32.
    pair = tf.constant([seed % (tf.int32.max - 1), 0], tf.int32)
    state = tf.raw_ops.StatelessRandomGetKeyCounter(seed=pair)
    low, high = state.counter[0], state.counter[1]  # uint64 each, the low one first
    moved = low + tf.constant(steps, tf.uint64)
    carry = tf.cast(moved < low, tf.uint64)
    return state.key, tf.stack([moved, high + carry])
