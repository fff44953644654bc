"""Residual networks (He et al. 2015, arXiv 1512.03385): the CIFAR family and ImageNet's ResNet-50."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.errors import ConfigError, explain

__all__ = ["cifar_resnet", "resnet20", "resnet50"]

_DECAY = 1e-4  # section 4.2 of the paper


def resnet20(input_shape: Sequence[int] = (32, 32, 3), num_classes: int = 10) -> keras.Model:
    """Builds the 20-layer network of the paper's section 4.2; see `cifar_resnet`."""
    return cifar_resnet(input_shape, num_classes, depth=20)


def cifar_resnet(
    input_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 10,
    *,
    depth: int = 20,
    width: int = 16,
) -> keras.Model:
    """Builds a 6n+2-layer residual network for small images, after section 4.2 of the paper.

    Three groups of n blocks of two 3x3 convolutions, with width, 2 * width and 4 * width filters;
    each group but the first begins by halving the image. Shortcuts across a change of shape are
    1x1 convolutions.

    Args:
        input_shape: height, width and channels of an image.
        num_classes: number of logits.
        depth: number of weighted layers, 6n+2: 20, 32, 44, 56, 110.
        width: filters of the first group.

    Returns:
        An uncompiled model; float32 logits of shape [batch, num_classes].

    Raises:
        ConfigError: if depth is not 6n+2.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ConfigError(
            explain(
                "The depth of a CIFAR ResNet must be 6n+2",
                received=f"depth={depth}",
                fix="Use 20, 32, 44, 56 or 110",
            )
        )
    inputs = keras.Input(tuple(input_shape))
    x = _conv(inputs, width, 3, 1)
    for group in range(3):
        for block in range((depth - 2) // 6):
            strides = 2 if group and not block else 1
            x = _block(x, width * 2**group, strides)
    x = keras.layers.GlobalAveragePooling2D()(x)
    logits = keras.layers.Dense(
        num_classes, dtype="float32", kernel_initializer="he_normal", name="logits"
    )(x)
    return keras.Model(inputs, logits, name=f"resnet{depth}")


def resnet50(input_shape: Sequence[int] = (224, 224, 3), num_classes: int = 1000) -> keras.Model:
    """Builds ImageNet's ResNet-50 through `keras.applications`, with random weights.

    Args:
        input_shape: height, width (32 at least) and channels of an image.
        num_classes: number of logits.

    Returns:
        An uncompiled model; float32 logits of shape [batch, num_classes].
    """
    body = keras.applications.ResNet50(
        include_top=False, weights=None, input_shape=tuple(input_shape), pooling="avg"
    )
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(body.output)
    return keras.Model(body.input, logits, name="resnet50")


def _conv(x: Any, filters: int, size: int, strides: int, activation: bool = True) -> Any:
    """Convolution, batch normalisation and, as a rule, relu."""
    x = keras.layers.Conv2D(
        filters,
        size,
        strides=strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(_DECAY),
    )(x)
    x = keras.layers.BatchNormalization()(x)
    return keras.layers.ReLU()(x) if activation else x


def _block(x: Any, filters: int, strides: int) -> Any:
    """Two convolutions beside a shortcut."""
    shortcut = x
    if strides != 1 or x.shape[-1] != filters:
        shortcut = _conv(x, filters, 1, strides, activation=False)
    x = _conv(x, filters, 3, strides)
    x = _conv(x, filters, 3, 1, activation=False)
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))
