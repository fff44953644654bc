"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

import keras

__all__ = ["mlp"]


def mlp(
    input_shape: Sequence[int] = (28, 28, 1),
    num_classes: int = 10,
    *,
    units: Sequence[int] = (256, 256),
    dropout: float = 0.0,
) -> keras.Model:
    """Builds flatten, hidden relu layers, dense.

    Args:
        input_shape: shape of an example.
        num_classes: number of logits.
        units: width of each hidden layer.
        dropout: share of each hidden layer's outputs that is dropped in training.

    Returns:
        An uncompiled model; float32 logits of shape [batch, num_classes].
    """
    inputs = keras.Input(tuple(input_shape))
    x = keras.layers.Flatten()(inputs)
    for width in units:
        x = keras.layers.Dense(width, activation="relu")(x)
        if dropout:
            x = keras.layers.Dropout(dropout)(x)
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, logits, name="mlp")
