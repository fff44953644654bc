"""Finds the first NaN of a run: in which replica, and in its input, its loss or its gradients."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import DataError, LossError, explain

__all__ = ["NanGuard", "explain_nan", "unguard"]

_MARK = "tfdist NanGuard:"
_FOUND = re.compile(_MARK + r" (?P<where>.*?) : Tensor had (?P<what>[^\n]*?) values")
_ORIGINALS = "_tfdist_unguarded"


class NanGuard(keras.callbacks.Callback):
    """Ends `fit` at the first NaN or infinity, and says where it arose.

    `TerminateOnNaN` sees the loss of all replicas after it has spread. This looks at each replica's
    input, then its loss, then its gradients, inside the step; it costs a pass over each, so it is
    for finding a fault, not for every run. Gradients under a `LossScaleOptimizer`, which meets
    infinities by design, are left out. It does nothing in steps that XLA compiles.

    Raises (from `fit`):
        DataError: if a replica's input has NaN or infinite values.
        LossError: if its loss or a gradient has, while its input has none.
    """

    def on_train_begin(self, logs: Any = None) -> None:
        """Guards the model's step; it is traced anew."""
        _guard(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        """Leaves the model as it was."""
        unguard(self.model)


def explain_nan(error: BaseException) -> None:
    """Raises what a `NanGuard` found in the place of TensorFlow's error.

    Args:
        error: what a training step raised; nothing happens if it came from elsewhere.

    Raises:
        DataError: for an input.
        LossError: for a loss or gradient.
    """
    found = _FOUND.search(str(error)) if isinstance(error, tf.errors.InvalidArgumentError) else None
    if found is None:
        return
    kind = DataError if ": the input" in found["where"] else LossError
    remedy = (
        "Look at the rows that this replica was given; if the data is clean on the host, look at "
        "the device (tensorflow issue 62915)"
        if kind is DataError
        else "Lower the learning rate, clip the gradients, or look at the model's logarithms and "
        "divisions"
    )
    raise kind(explain(f"{found['where']} has {found['what']} values", fix=remedy)) from None


class _State(threading.local):
    """Per thread: each replica of a process is traced in a thread of its own."""

    def __init__(self) -> None:
        self.label = ""
        self.has_rows: Any = True


def _guard(model: Any) -> None:
    unguard(model)
    state = _State()
    optimizer = model.optimizer
    kept = [(model, "train_step"), (model, "compute_loss")]
    model.train_step = _checked_step(model.train_step, state)
    model.compute_loss = _checked_loss(model.compute_loss, state)
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        kept.append((optimizer, "apply_gradients"))
        optimizer.apply_gradients = _checked_gradients(optimizer.apply_gradients, state)
    object.__setattr__(model, _ORIGINALS, kept)
    model.make_train_function(force=True)


def unguard(model: Any) -> None:
    """Takes the checks off a model; also what a `fit` that failed has left on it."""
    kept = getattr(model, _ORIGINALS, ())
    for owner, name in kept:
        owner.__dict__.pop(name, None)  # the class's own method shows again
    if kept:
        object.__setattr__(model, _ORIGINALS, ())
        model.make_train_function(force=True)


def _checked_step(step: Callable[[Any], Any], state: _State) -> Callable[[Any], Any]:
    @functools.wraps(step)
    def train_step(data: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        index = tf.get_static_value(tf.convert_to_tensor(replica.replica_id_in_sync_group))
        state.label = f"replica {index} of {replica.num_replicas_in_sync}"
        state.has_rows = True
        parts = dict(zip(("x", "y", "sample_weight"), keras.utils.unpack_x_y_sample_weight(data)))
        leaves = keras.tree.flatten(parts["x"])
        if leaves and len(leaves[0].shape):
            state.has_rows = tf.shape(leaves[0])[0] > 0
        checks = [
            _check(leaf, f"{state.label}: the input {name}", state)
            for name, part in parts.items()
            for leaf in keras.tree.flatten(part)
        ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            data = keras.tree.map_structure(_same, data)
        return step(data)

    return train_step


def _checked_loss(compute: Callable[..., Any], state: _State) -> Callable[..., Any]:
    @functools.wraps(compute)
    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        check = _check(loss, f"{state.label}: the loss", state)
        if check is None or not state.label:
            return loss
        with tf.control_dependencies([check]):
            return tf.identity(loss)

    return compute_loss


def _checked_gradients(apply: Callable[..., Any], state: _State) -> Callable[..., Any]:
    @functools.wraps(apply)
    def apply_gradients(grads_and_vars: Any) -> Any:
        pairs = list(grads_and_vars)
        checks = [_check(g, f"{state.label}: the gradient of {v.path}", state) for g, v in pairs]
        with tf.control_dependencies([check for check in checks if check is not None]):
            pairs = [(g if g is None else _same(g), v) for g, v in pairs]
        return apply(pairs)

    return apply_gradients


def _check(value: Any, where: str, state: _State) -> Any:
    """Returns an operation that fails when `value` has NaNs, or None if it can't have any."""
    value = getattr(value, "values", value)  # of sparse gradients and inputs
    if value is None or not tf.is_tensor(value) or not value.dtype.is_floating:
        return None
    # A replica without rows has the mean of nothing, which counts for nothing.
    value = tf.where(state.has_rows, value, tf.zeros_like(value))
    return tf.debugging.check_numerics(value, f"{_MARK} {where}")


def _same(value: Any) -> Any:
    return tf.identity(value) if isinstance(value, (tf.Tensor, tf.IndexedSlices)) else value
