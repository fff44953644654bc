"""Layers whose behaviour depends on which rows, or which random numbers, a replica gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_bridge import context as step_context
from tfdist.keras_bridge.marks import is_tfdist
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS"]

# Added to a seed once per replica: a large odd number, so that replicas' seeds don't meet those of
# layers made one after the other.
_SEED_STRIDE = 0x3C6EF35


def _next_seed(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Gives each replica random numbers of its own; replica 0 has those of one device."""
    seed = original(self, *args, **kwargs)
    replica, context = _replica(), step_context.current()
    if context is not None and context.part is not None:
        index = tf.cast(context.part, seed.dtype)
    elif replica is not None:
        index = tf.cast(replica.replica_id_in_sync_group, seed.dtype)
    else:
        return seed
    return seed + tf.stack(
        [index * tf.constant(_SEED_STRIDE, seed.dtype), tf.zeros([], seed.dtype)]
    )


def _moments(original: Callable[..., Any], self: Any, inputs: Any, mask: Any) -> Any:
    """Takes BatchNormalization's statistics; of all replicas where asked, and never of no rows."""
    replica = _replica()
    if replica is None:
        strategy = tf.distribute.get_strategy()
        if self.synchronized or (is_tfdist(strategy) and strategy.tfdist.sync_batch_norm):
            step_context.refuse_between_workers(step_context.current())
        return original(self, inputs, mask)
    if replica.strategy.tfdist.sync_batch_norm:
        self.synchronized = True
    context = step_context.current()
    has_rows = context.has_rows if context is not None else tf.shape(inputs)[0] > 0
    if self.synchronized:
        if context is not None and context.jit:
            raise step_context.CollectiveInJit
        if has_rows is not True:  # the stand-in must not count
            end = tf.where(has_rows, tf.shape(inputs)[0], 0)
            inputs, mask = inputs[:end], None if mask is None else mask[:end]
        return original(self, inputs, mask)
    mean, variance = original(self, inputs, mask)
    if has_rows is True:
        return mean, variance
    moving_mean = tf.cast(tf.convert_to_tensor(self.moving_mean), mean.dtype)
    moving_variance = tf.cast(tf.convert_to_tensor(self.moving_variance), variance.dtype)
    return tf.where(has_rows, mean, moving_mean), tf.where(has_rows, variance, moving_variance)


def _update_mean(
    original: Callable[..., Any], self: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Counts a scalar that was computed from a replica's rows by the weight of those rows.

    In `compile`'s losses and after them, a scalar is a loss that has its weight already; what a
    metric function returns never has.
    """
    context = step_context.current()
    has_weight = (
        context is not None
        and context.weighted
        and (context.in_compile_loss or not context.in_own_code)
    )
    if (
        context is not None
        and sample_weight is None
        and (not has_weight or isinstance(self, keras.metrics.MeanMetricWrapper))
        and not context.is_even
        and len(getattr(values, "shape", (0,))) == 0
    ):
        sample_weight = context.weight()
        values = tf.where(sample_weight > 0, values, tf.zeros_like(values))
    return original(self, values, sample_weight)


def _replica() -> Any | None:
    """Returns the replica context of a tfdist strategy with several replicas, or None."""
    if tf.distribute.in_cross_replica_context():
        return None
    strategy = tf.distribute.get_strategy()
    if not is_tfdist(strategy) or strategy.num_replicas_in_sync == 1:
        return None
    return tf.distribute.get_replica_context()


REPAIRS = (
    Repair(
        "keras.src.random.seed_generator:SeedGenerator",
        "next",
        "all replicas draw the same dropout masks (keras issue 22620)",
        _next_seed,
    ),
    Repair(
        "keras.src.layers.normalization.batch_normalization:BatchNormalization",
        "_moments",
        "a replica without rows turns the moving statistics into NaN (tensorflow issue 36224)",
        _moments,
    ),
    Repair(
        "keras.src.metrics.reduction_metrics:Mean",
        "update_state",
        "a loss tracker of a custom train_step, and a metric function that returns one number per "
        "batch, count replicas, whatever their rows",
        _update_mean,
    ),
)
