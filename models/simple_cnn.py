"""The classic first model of a guide to distributed training."""

from __future__ import annotations

from collections.abc import Sequence

import keras

__all__ = ["simple_cnn"]


def simple_cnn(input_shape: Sequence[int] = (28, 28, 1), num_classes: int = 10) -> keras.Model:
    """Builds conv 32 3x3 relu, flatten, dense.

    Args:
        input_shape: height, width and channels of an image.
        num_classes: number of logits.

    Returns:
        An uncompiled model; float32 logits of shape [batch, num_classes].
    """
    inputs = keras.Input(tuple(input_shape))
    x = keras.layers.Conv2D(32, 3, activation="relu")(inputs)
    x = keras.layers.Flatten()(x)
    # float32 also under mixed precision: a softmax of float16 logits underflows to log(0).
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, logits, name="simple_cnn")
