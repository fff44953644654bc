"""Keras variables that can be read as numbers, and assigned on one replica alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_bridge import context as step_context
from tfdist.keras_bridge.marks import is_tfdist
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS"]


def _direct_assign(original: Callable[..., Any], self: Any, value: Any) -> None:
    """Assigns to this replica's own copy while all replicas are known to assign the same."""
    if not step_context.local_updates_active():
        original(self, value)
        return
    strategy = tf.distribute.get_strategy()
    replica = tf.distribute.get_replica_context()
    if replica is None:
        original(self, value)
        return
    copies = strategy.experimental_local_results(self._value)
    copies[_local_replica(strategy, replica)].assign(tf.cast(value, self._value.dtype))


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
        "a variable that aggregates ONLY_FIRST_REPLICA merges the replicas, also inside a cond",
        _direct_assign,
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
