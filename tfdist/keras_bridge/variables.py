"""Keras variables that can be read as numbers, and assigned on one replica alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope

from tfdist.keras_bridge import context as step_context
from tfdist.keras_bridge.marks import is_tfdist
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS"]


def _direct_assign(original: Callable[..., Any], self: Any, value: Any) -> None:
    """Assigns to this replica's own copy while all replicas are known to assign the same."""
    if not step_context.local_updates_active():
        original(self, _contribution(self, value))
        return
    strategy = tf.distribute.get_strategy()
    replica = tf.distribute.get_replica_context()
    if replica is None:
        original(self, value)
        return
    copies = strategy.experimental_local_results(self._value)
    copies[_local_replica(strategy, replica)].assign(tf.cast(value, self._value.dtype))


def _assign_add(original: Callable[..., Any], self: Any, value: Any) -> Any:
    """Adds the sum of what the replicas add, to a layer's variable with `aggregation="sum"`."""
    if _is_on_a_parameter_server(self) and not in_stateless_scope():
        # In one operation: another worker may be adding at the same moment.
        self._value.assign_add(tf.cast(tf.convert_to_tensor(value), self._value.dtype))
        return tf.convert_to_tensor(self._value)
    if self.aggregation != "sum" or in_stateless_scope() or _step_that_aggregates(self) is None:
        return original(self, value)
    added = tf.broadcast_to(tf.cast(tf.convert_to_tensor(value), self._value.dtype), self.shape)
    self._value.assign_add(_contribution(self, added))
    return tf.convert_to_tensor(self._value)


def _assign_sub(original: Callable[..., Any], self: Any, value: Any) -> Any:
    if not _is_on_a_parameter_server(self) and (
        self.aggregation != "sum" or in_stateless_scope() or _step_that_aggregates(self) is None
    ):
        return original(self, value)
    return self.assign_add(-tf.cast(tf.convert_to_tensor(value), self._value.dtype))


def _is_on_a_parameter_server(variable: Any) -> bool:
    return "/job:ps" in (getattr(variable._value, "device", None) or "")


def _contribution(variable: Any, value: Any) -> Any:
    """Weighs what a replica assigns to a variable that takes the replicas' mean or sum."""
    context = _step_that_aggregates(variable)
    if context is None:
        return value
    if context.jit:
        raise step_context.CollectiveInJit
    value = tf.convert_to_tensor(value)
    if variable.aggregation == "mean" and value.dtype.is_floating:
        return context.times_weight(value)
    if variable.aggregation == "sum" and context.has_rows is not True:
        return tf.where(context.has_rows, value, tf.zeros_like(value))
    return value


def _step_that_aggregates(variable: Any) -> step_context.BatchContext | None:
    """Returns the step that the thread's replica is in, if an assignment merges the replicas."""
    context = step_context.current()
    if (
        context is None
        or context.num_replicas == 1
        or step_context.local_updates_active()
        or variable.aggregation not in ("mean", "sum")
        or variable.synchronization == "on_read"
        or tf.distribute.in_cross_replica_context()
        or not is_tfdist(getattr(variable._value, "distribute_strategy", None))
    ):
        return None
    return context


def _local_replica(strategy: Any, replica: Any) -> int:
    """Returns this replica's number within its process, as a Python int at trace time."""
    index = replica.replica_id_in_sync_group
    if not isinstance(index, int):
        index = int(tf.get_static_value(index))
    per_worker = len(strategy.extended.worker_devices)
    return index % per_worker


def _to_float(original: Callable[..., Any], self: Any) -> float:
    return float(self.numpy()) if _is_distributed(self) else original(self)


def _to_int(original: Callable[..., Any], self: Any) -> int:
    return int(self.numpy()) if _is_distributed(self) else original(self)


def _is_distributed(variable: Any) -> bool:
    return variable.ndim == 0 and is_tfdist(getattr(variable._value, "distribute_strategy", None))


REPAIRS = (
    Repair(
        "keras.src.backend.tensorflow.core:Variable",
        "_direct_assign",
        "a variable that aggregates ONLY_FIRST_REPLICA merges the replicas, also inside a cond; one "
        "that takes the replicas' mean counts them alike, whatever their rows",
        _direct_assign,
    ),
    Repair(
        "keras.src.backend.common.variables:Variable",
        "assign_add",
        "assigns the sum, so that one that sums over N replicas gets its old value N times",
        _assign_add,
    ),
    Repair(
        "keras.src.backend.common.variables:Variable",
        "assign_sub",
        "assigns the difference, so that one that sums over N replicas gets its old value N times",
        _assign_sub,
    ),
    Repair(
        "keras.src.backend.common.variables:Variable",
        "__float__",
        "float() of a mirrored variable fails: learning_rate, dynamic_scale (keras issue 18625)",
        _to_float,
    ),
    Repair(
        "keras.src.backend.common.variables:Variable",
        "__int__",
        "int() of a mirrored variable fails: iterations",
        _to_int,
    ),
)
