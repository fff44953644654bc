"""Optimizers that first sum the gradients over the replicas and then do everything else.

Keras sums inside the update, after clipping and inside the `tf.cond`s of accumulation, EMA and loss
scaling. Here each replica gets the aggregated gradients at the top of `apply`; from there on all
replicas compute the same on their own copy of the variables, with no further merge.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_bridge import context as step_context
from tfdist.keras_bridge.marks import is_tfdist
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS", "Kept", "kept_gradients", "scaled_share"]


@dataclasses.dataclass
class Kept:
    """What an optimizer was asked to apply.

    Attributes:
        optimizer: the optimizer.
        gradients: its gradients, dense or sparse; None where there is none.
        variables: the variables, in the same order.
    """

    optimizer: Any
    gradients: list[Any]
    variables: list[Any]


class _State(threading.local):
    def __init__(self) -> None:
        self.aggregated = False
        self.kept: list[Kept] | None = None


_state = _State()


def _acts(optimizer: Any) -> bool:
    """Returns whether this call updates a replica of a tfdist strategy."""
    return is_tfdist(getattr(optimizer, "_distribution_strategy", None)) and (
        not tf.distribute.in_cross_replica_context()
    )


@contextlib.contextmanager
def kept_gradients() -> Iterator[list[Kept]]:
    """Runs a block in which optimizers change nothing: what they would apply is kept.

    Yields:
        The list that it is kept in.
    """
    before = _state.kept
    _state.kept = []
    try:
        yield _state.kept
    finally:
        _state.kept = before


def scaled_share(gradients: Sequence[Any], context: step_context.BatchContext) -> list[Any]:
    """Returns this part's gradients so that their sum over the parts is the global batch's.

    Args:
        gradients: dense or sparse, None where there is none.
        context: the step that the part is in.
    """
    factor = context.gradient_factor(tf.float32)
    return [None if g is None else _scaled(g, factor, safe=not context.is_even) for g in gradients]


@contextlib.contextmanager
def _aggregation_done() -> Iterator[None]:
    before = _state.aggregated
    _state.aggregated = True
    try:
        with step_context.local_updates():
            yield
    finally:
        _state.aggregated = before


def _beside(value: Any) -> AbstractContextManager[Any]:
    """Computes an update where its variable is, so that its slots need not travel."""
    device = value.device if isinstance(value, tf.Variable) else ""
    return tf.device(device) if "/job:ps" in device else contextlib.nullcontext()


def _scaled(gradient: Any, factor: Any, safe: bool) -> Any:
    """Returns gradient * factor; with `safe`, 0 where the factor is 0 even if it is NaN."""
    multiply = tf.math.multiply_no_nan if safe else tf.multiply
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            multiply(gradient.values, tf.cast(factor, gradient.values.dtype)),
            gradient.indices,
            gradient.dense_shape,
        )
    return multiply(gradient, tf.cast(factor, gradient.dtype))


def aggregate(grads: Sequence[Any]) -> list[Any]:
    """Averages gradients over the replicas (sums them, outside of a step of `fit`).

    Args:
        grads: dense or sparse gradients of this replica, None where there is none.

    Returns:
        The aggregated gradients, in the same places.
    """
    replica = tf.distribute.get_replica_context()
    context = step_context.current()
    if replica.num_replicas_in_sync == 1:
        return list(grads)
    present = [g for g in grads if g is not None]
    if context is not None:
        factor = context.gradient_factor(tf.float32)
        present = [_scaled(g, factor, safe=not context.is_even) for g in present]
    if not present:
        return list(grads)
    reduced = iter(replica.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if g is None else next(reduced) for g in grads]


def _apply(
    original: Callable[..., Any], self: Any, grads: Any, trainable_variables: Any = None
) -> Any:
    if not _acts(self) or _state.aggregated:
        return original(self, grads, trainable_variables)
    if _state.kept is not None:
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        _state.kept.append(Kept(self, list(grads), list(variables)))
        return None
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
    if not self.built and trainable_variables is not None:
        # Outside of the function that is being traced: variables can't be born in a branch of it, nor
        # where workers broadcast their values.
        with tf.init_scope(), keras.name_scope(self.name, caller=self):
            self.build(trainable_variables)
    grads = aggregate(grads)
    with _aggregation_done():
        return original(self, grads, trainable_variables)


def _loss_scale_apply(
    original: Callable[..., Any], self: Any, grads: Any, trainable_variables: Any = None
) -> Any:
    """Checks the aggregated gradients, so that all replicas skip the same steps."""
    if not _acts(self):
        return original(self, grads, trainable_variables)
    if _state.kept is not None:
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        _state.kept.append(Kept(self, list(grads), list(variables)))
        return None
    if not self.built:
        with tf.init_scope(), keras.name_scope(self.name, caller=self):
            self.build(trainable_variables)
        self.built = True
    if not _state.aggregated:
        grads = aggregate(grads)
    with _aggregation_done():
        return self._common_apply(grads, trainable_variables)


def _scale_loss(original: Callable[..., Any], self: Any, loss: Any) -> Any:
    """Keeps float16 gradients in the range that one device has: those of a mean over all rows."""
    scaled = original(self, loss)
    context = step_context.current()
    if context is None or context.num_replicas == 1 or not _acts(self):
        return scaled
    context.divided = True
    return scaled / tf.cast(context.num_replicas, scaled.dtype)


def _update_step(
    original: Callable[..., Any],
    self: Any,
    grads: Any,
    trainable_variables: Any,
    learning_rate: Any,
) -> None:
    if not _acts(self):
        original(self, grads, trainable_variables, learning_rate)
        return
    for gradient, variable in zip(grads, trainable_variables):
        value = getattr(variable, "value", variable)
        with _beside(value):
            self.update_step(gradient, value, learning_rate)


def _weight_decay(original: Callable[..., Any], self: Any, variables: Any) -> None:
    if not _acts(self):
        original(self, variables)
        return
    if self.weight_decay is None:
        return
    for variable in variables:
        if self._use_weight_decay(variable):
            value = getattr(variable, "value", variable)
            rate = tf.cast(self.learning_rate, value.dtype)
            decay = tf.cast(self.weight_decay, value.dtype)
            with _beside(value):
                value.assign_sub(value * decay * rate)


def _overwrite_with_average(
    original: Callable[..., Any], self: Any, trainable_variables: Any
) -> None:
    if not _acts(self):
        original(self, trainable_variables)
        return
    for variable, average in zip(trainable_variables, self._model_variables_moving_average):
        if average is not None:
            getattr(variable, "value", variable).assign(tf.convert_to_tensor(average))


def _accumulate(original: Callable[..., Any], self: Any, grads: Any, acc_grads: Any) -> None:
    if not _acts(self):
        original(self, grads, acc_grads)
        return
    for gradient, accumulator in zip(grads, acc_grads):
        with _beside(accumulator.value):
            accumulator.assign(tf.convert_to_tensor(gradient) + accumulator)


_TF = "keras.src.backend.tensorflow.optimizer:TFOptimizer"

REPAIRS = (
    Repair(
        "keras.src.optimizers.base_optimizer:BaseOptimizer",
        "apply",
        "clipnorm and global_clipnorm clip each replica's gradients before they are summed "
        "(tensorflow issue 33929); gradient_accumulation_steps and ema_overwrite_frequency crash: "
        "merge_call inside a cond (keras issue 17429)",
        _apply,
    ),
    Repair(
        "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer",
        "_tf_apply",
        "the inner optimizer's merge_call would stand inside a cond (keras issue 18666)",
        _loss_scale_apply,
    ),
    Repair(
        "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer",
        "scale_loss",
        "not a fault: the bridge's means over a replica's rows would overflow N times earlier",
        _scale_loss,
    ),
    Repair(_TF, "_backend_update_step", "sums the gradients once more", _update_step),
    Repair(_TF, "_apply_weight_decay", "merges the replicas, also inside a cond", _weight_decay),
    Repair(
        _TF,
        "_overwrite_model_variables_with_average_value",
        "merges the replicas inside a cond and crashes",
        _overwrite_with_average,
    ),
    Repair(
        _TF,
        "_backend_increment_gradient_accumulators",
        "merges the replicas inside a cond and crashes",
        _accumulate,
    ),
)
