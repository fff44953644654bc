"""Keras' own steps with the forward and backward pass compiled by XLA, collectives outside."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_bridge import context as step_context

__all__ = ["is_stock", "jit_step"]


def jit_step(
    model: Any, step: Callable[[Any], Any], data: Any, context: step_context.BatchContext
) -> Any:
    """Runs a replica's step with XLA, as far as it holds no collective.

    Args:
        model: the model.
        step: its train, test or predict step.
        data: the replica's data.
        context: the step's context, with `jit=True`.

    Returns:
        What `step` returns.

    Raises:
        CollectiveInJit: if the forward pass needs a collective, which XLA can't compile.
    """
    if step.__name__ != "train_step":
        return _compiled(lambda: step(data), context)
    if not is_stock(model, "train_step"):
        warnings.warn(
            "`jit_compile=True` can't compile a custom `train_step` whose optimizer sums gradients "
            "over replicas; it runs without XLA.",
            stacklevel=2,
        )
        context.jit = False
        with step_context.entered(context):
            return step(data)
    gradients, logs = _compiled(lambda: _forward_and_backward(model, data), context)
    context.jit = False
    with step_context.entered(context):
        if gradients is None:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        else:
            model.optimizer.apply_gradients(zip(gradients, model.trainable_weights))
    return logs


def _forward_and_backward(model: Any, data: Any) -> tuple[Any, Any]:
    """Keras' `train_step` up to the gradients, with its order of losses, trackers and metrics."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
        )
        scaled = loss if model.optimizer is None else model.optimizer.scale_loss(loss)
    weights = model.trainable_weights
    gradients = tape.gradient(scaled, weights) if weights else None
    from keras.src.losses import loss as loss_module

    leaf = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
    model._loss_tracker.update_state(
        loss_module.unscale_loss_for_distribution(loss), sample_weight=tf.shape(leaf)[0]
    )
    return gradients, model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _compiled(function: Callable[[], Any], context: step_context.BatchContext) -> Any:
    """Traces and calls `function` under XLA, on this replica's device."""

    @tf.autograph.experimental.do_not_convert
    def in_context() -> Any:
        with step_context.entered(context):
            return function()

    return tf.function(in_context, jit_compile=True)()


def is_stock(model: Any, name: str) -> bool:
    """Returns whether a method of the model is Keras' own."""
    method = getattr(type(model), name)
    return method.__module__.startswith("keras.src.")
