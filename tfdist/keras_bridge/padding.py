"""Metrics on batches that were filled up to one size with rows of weight 0 (see `data.fixed_shapes`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_bridge import context as step_context
from tfdist.keras_bridge.marks import is_tfdist
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS"]


def _update_metrics(
    original: Callable[..., Any], self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    """Lets metrics that don't see weights leave out the rows of weight 0, where shapes are fixed."""
    strategy = tf.distribute.get_strategy()
    is_filled = is_tfdist(strategy) and strategy.tfdist.fixed_shapes
    if sample_weight is None or not is_filled or step_context.current() is None:
        return original(self, y_true, y_pred, sample_weight)
    if not self.built:
        self.build(y_true, y_pred)
    present = keras.tree.map_structure(
        lambda weight: tf.cast(tf.not_equal(weight, 0), weight.dtype), sample_weight
    )
    plain, weighted = self._flat_metrics, self._flat_weighted_metrics
    try:
        # Not by assignment: Keras would track the lists once more.
        object.__setattr__(self, "_flat_metrics", [None] * len(plain))
        original(self, y_true, y_pred, sample_weight)
        object.__setattr__(self, "_flat_weighted_metrics", plain)
        original(self, y_true, y_pred, present)
    finally:
        object.__setattr__(self, "_flat_metrics", plain)
        object.__setattr__(self, "_flat_weighted_metrics", weighted)
    return None


REPAIRS = (
    Repair(
        "keras.src.trainers.compile_utils:CompileMetrics",
        "update_state",
        "metrics given as `metrics` count rows of weight 0, with which batches are filled up for a TPU",
        _update_metrics,
    ),
)
