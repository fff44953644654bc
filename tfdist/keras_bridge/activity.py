"""Activity regularizers, where Keras sums them over the rows of a batch.

Keras 3.12, the last for Python 3.10, adds up the penalty of all rows that a replica has; later
versions divide by their number. The bridge takes what a layer adds to the loss for a mean over the
replica's rows, and can't tell such a sum from it.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import UnsupportedError, explain
from tfdist.keras_bridge.marks import parts_of

__all__ = ["check", "sums_rows"]


@functools.cache
def sums_rows() -> bool:
    """Returns whether this Keras sums activity regularizers over the rows: asks a layer."""
    with tf.init_scope(), tf.device("CPU:0"):
        layer = keras.layers.Activation("linear", activity_regularizer=keras.regularizers.L2(1.0))
        layer(tf.ones((2, 1)))
        return float(layer.losses[0]) > 1.5  # 1 a row


def check(model: Any, strategy: Any) -> None:
    """Refuses activity regularizers that would be weighed wrongly.

    Args:
        model: a model built under `strategy`.
        strategy: its tfdist strategy.

    Raises:
        UnsupportedError: several replicas would each sum over their rows.
    """
    if parts_of(strategy) == 1:
        return
    layers = [
        layer.name
        for layer in model._flatten_layers()
        if getattr(layer, "activity_regularizer", None) is not None
    ]
    if layers and sums_rows():
        raise UnsupportedError(
            explain(
                "This version of Keras sums activity regularizers over the rows of a batch, so that "
                "several replicas would not train as one device does",
                received=f"layers {', '.join(layers)}, Keras {keras.__version__}",
                fix="Use Keras 3.15 (Python 3.11 or later), add the penalty as a mean with "
                "`self.add_loss(ops.mean(...))` in the layer, or train on one device",
            )
        )
