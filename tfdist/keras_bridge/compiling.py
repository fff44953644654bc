"""Keras' `compile` on a model that was built under a tfdist strategy, called outside its scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_bridge.marks import strategy_of
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS"]


def _compile(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes what is given by name, and Keras' own trackers, under the model's strategy."""
    strategy = strategy_of(self)
    if strategy is None or tf.distribute.has_strategy():
        return original(self, *args, **kwargs)
    with strategy.scope():
        return original(self, *args, **kwargs)


REPAIRS = (
    Repair(
        "keras.src.trainers.trainer:Trainer",
        "compile",
        "outside the scope, an optimizer given by its name and the loss tracker are made for one "
        "device, and compiling anew between two fits fails in the second",
        _compile,
    ),
)
