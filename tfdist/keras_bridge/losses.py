"""Losses whose mean over the replicas is the loss of the whole batch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras import ops

from tfdist.keras_bridge import context as step_context
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS", "record_losses", "scalar_kind", "set_scalar_kind"]

_KIND = "_tfdist_scalar_kind"


class _Recorder(threading.local):
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.records: list[tuple[Any, Any]] | None = None


_recorder = _Recorder()


@contextlib.contextmanager
def record_losses() -> Iterator[list[tuple[Any, Any]]]:
    """Collects (loss object, its value before reduction) of each Keras loss in the block."""
    before = _recorder.records
    _recorder.records = []
    try:
        yield _recorder.records
    finally:
        _recorder.records = before


def scalar_kind(loss: Any) -> str:
    """Returns "mean" or "sum": what a loss that returns a scalar does with its rows."""
    return getattr(loss, _KIND, "mean")


def set_scalar_kind(loss: Any, kind: str) -> None:
    """Notes whether a loss that returns a scalar takes the mean or the sum of its rows."""
    object.__setattr__(loss, _KIND, kind)


def _call_loss(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Keeps track of which loss object is being reduced."""
    context = step_context.current()
    stack = context.loss_stack if context is not None else _recorder.stack
    stack.append(self)
    try:
        return original(self, *args, **kwargs)
    finally:
        stack.pop()


def _call_compile_loss(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    context = step_context.current()
    if context is None:
        return original(self, *args, **kwargs)
    before = context.in_compile_loss
    context.in_compile_loss = True
    try:
        loss = original(self, *args, **kwargs)
    finally:
        context.in_compile_loss = before
    return None if loss is None else context.as_seen(loss)


def _reduce_values(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    reduction: str | None = "sum_over_batch_size",
) -> Any:
    if _recorder.records is not None and _recorder.stack:
        _recorder.records.append((_recorder.stack[-1], values))
    context = step_context.current()
    if context is None:
        return original(values, sample_weight, reduction)
    if reduction in (None, "none") and len(values.shape) > 0 and not context.in_compile_loss:
        return values  # the user's own train_step reduces it, as on one device
    return context.as_seen(_weighted(context, values, sample_weight, reduction))


def _weighted(
    context: step_context.BatchContext, values: Any, sample_weight: Any, reduction: str | None
) -> Any:
    """Reduces a loss over this replica's rows, with the weight that makes the mean right."""
    is_scalar = len(values.shape) == 0
    replicas = context.num_replicas
    if is_scalar:
        context.weighted = True
        loss = context.loss_stack[-1] if context.loss_stack else None
        if scalar_kind(loss) == "sum":
            return context.only_with_rows(values * tf.cast(replicas, values.dtype))
        return context.times_weight(values)
    if reduction in (None, "none"):
        context.weighted = True
        return context.only_with_rows(values * tf.cast(replicas, values.dtype))
    context.weighted = True
    total = context.only_with_rows(ops.sum(values))
    if reduction == "sum":
        return total * tf.cast(replicas, total.dtype)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights = context.only_with_rows(tf.cast(tf.reduce_sum(sample_weight), total.dtype))
        divisor = step_context.replica_sum(weights)
        return ops.divide_no_nan(total * tf.cast(replicas, total.dtype), divisor)
    count = tf.cast(tf.size(values), total.dtype)
    return context.times_weight(ops.divide_no_nan(total, count))


def _apply_mask(
    original: Callable[..., Any], sample_weight: Any, mask: Any, dtype: Any, reduction: Any
) -> Any:
    """Normalises a masked loss by the valid entries of the whole batch, not of this replica's."""
    context = step_context.current()
    if (
        context is None
        or context.num_replicas == 1
        or mask is None
        or reduction not in ("mean", "sum_over_batch_size")
    ):
        return original(sample_weight, mask, dtype, reduction)
    mask = tf.cast(mask, dtype)
    counts = tf.stack([tf.cast(tf.size(mask), dtype), tf.reduce_sum(mask)])
    total, valid = tf.unstack(step_context.replica_sum(context.only_with_rows(counts)))
    scaled = mask * tf.math.divide_no_nan(total, valid)
    # "sum" multiplies the sample weights in without normalising once more.
    return original(sample_weight, scaled, dtype, "sum")


def _scale_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Weights a loss that does not depend on the batch, or is a mean over it, as `add_loss`'s."""
    context = step_context.current()
    if context is None:
        return original(value)
    return context.as_seen(context.times_weight(tf.convert_to_tensor(value)))


def _unscale_for_distribution(original: Callable[..., Any], value: Any) -> Any:
    """Turns L_r back into the mean over this replica's rows, for trackers that weigh by rows."""
    context = step_context.current()
    if context is None:
        return original(value)
    if len(value.shape) > 0:
        return value / tf.cast(context.num_replicas, value.dtype)
    if context.in_compile_loss or context.is_even:
        return value
    return tf.math.divide_no_nan(value, context.weight(value.dtype))


def _average_loss(
    original: Callable[..., Any],
    per_example_loss: Any,
    sample_weight: Any = None,
    global_batch_size: Any = None,
) -> Any:
    """TensorFlow's recipe for a loss that is summed over replicas, in a step that averages."""
    loss = original(per_example_loss, sample_weight, global_batch_size)
    context = step_context.current()
    if context is None:
        return loss
    context.weighted = True
    loss = context.only_with_rows(loss * tf.cast(context.num_replicas, loss.dtype))
    return context.as_seen(loss if global_batch_size is not None else context.times_weight(loss))


def _regularization_loss(original: Callable[..., Any], regularization_loss: Any) -> Any:
    loss = original(regularization_loss)
    context = step_context.current()
    if context is None:
        return loss
    return context.as_seen(context.times_weight(loss * tf.cast(context.num_replicas, loss.dtype)))


_LOSS = "keras.src.losses.loss"

REPAIRS = (
    Repair(
        f"{_LOSS}:Loss",
        "__call__",
        "a loss does not know which object reduces it; needed for losses that return a scalar",
        _call_loss,
    ),
    Repair(
        "keras.src.trainers.compile_utils:CompileLoss",
        "__call__",
        "per-output loss trackers weigh by the static batch size, the total by the dynamic one",
        _call_compile_loss,
    ),
    Repair(
        _LOSS,
        "reduce_values",
        "the mean of the replicas' means is taken, so a last batch of 4+3 rows is weighted wrongly; "
        "a loss that returns a batch mean trains with N times the learning rate "
        "(tensorflow issue 35093)",
        _reduce_values,
    ),
    Repair(
        _LOSS,
        "apply_mask",
        "a masked loss is normalised by each replica's own number of valid entries",
        _apply_mask,
    ),
    Repair(
        _LOSS,
        "scale_loss_for_distribution",
        "regularisation and add_loss count 1/N on each replica, whatever its rows",
        _scale_for_distribution,
    ),
    Repair(
        _LOSS,
        "unscale_loss_for_distribution",
        "the loss tracker assumes even shares",
        _unscale_for_distribution,
    ),
    Repair(
        "tensorflow:nn",
        "compute_average_loss",
        "not a fault: it prepares a sum over the replicas, where a step of `fit` takes the mean",
        _average_loss,
    ),
    Repair(
        "tensorflow:nn",
        "scale_regularization_loss",
        "not a fault: it prepares a sum over the replicas, where a step of `fit` takes the mean",
        _regularization_loss,
    ),
)
