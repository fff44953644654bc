"""What stock Keras and tf.distribute do wrong: one check for each repair of the bridge, or more.

A check runs in a process that has never imported tfdist, on two logical CPU devices or in two worker
processes, and returns whether the fault is still there and what it saw. When a check says no, upstream has
fixed what its text names, and the repair can be dropped.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from parity.lazy import keras, tf

__all__ = [
    "Check",
    "load_checks",
    "run",
    "signatures",
    "stands_for",
    "start",
    "start_bridge",
    "start_workers",
]


@dataclass(frozen=True)
class Check:
    """A fault of upstream that a repair stands in for.

    Attributes:
        owner: the repair's owner.
        name: the repair's name.
        fault: what upstream does.
        function: returns (whether the fault is there, what was seen).
        workers: whether it takes two worker processes.
    """

    owner: str
    name: str
    fault: str
    function: Callable[[Any], tuple[bool, Any]]
    workers: bool

    @property
    def id(self) -> str:
        """Where the check is, "module:function"."""
        return f"{self.function.__module__}:{self.function.__name__}"


_CHECKS: list[Check] = []


def load_checks(*modules: str) -> list[Check]:
    """Returns the checks of some modules of this folder."""
    for module in modules:
        importlib.import_module(module)
    return [check for check in _CHECKS if check.function.__module__ in modules]


def stands_for(owner: str, name: str, fault: str, workers: bool = False) -> Any:
    """Enters a function into the table of checks."""

    def enter(function: Any) -> Any:
        _CHECKS.append(Check(owner, name, fault, function, workers))
        return function

    return enter


def start() -> Any:
    """Sets up stock MirroredStrategy on two logical CPU devices."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def start_workers() -> Any:
    """Sets up stock MultiWorkerMirroredStrategy from TF_CONFIG."""
    return tf.distribute.MultiWorkerMirroredStrategy()


def run(strategy: Any, check: str) -> tuple[bool, str]:
    """Runs the check "module:function" and returns whether the fault is there, and what was seen."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    module, _, function = check.partition(":")
    fault, seen = getattr(importlib.import_module(module), function)(strategy)
    assert "tfdist" not in sys.modules, "this process must be stock"
    return bool(fault), str(seen)


def start_bridge() -> Any:
    """Sets up the table of repairs, as a strategy's constructor does."""
    from tfdist import keras_bridge
    from tfdist.keras_bridge import patching, sharded_state

    keras_bridge.install()
    patching.apply_repairs(sharded_state.REPAIRS)  # as a table in shards does
    return patching.installed()


def signatures(repairs: Any) -> dict[tuple[str, str], dict[str, list[tuple[str, str, bool]]]]:
    """Returns the parameters of each replaced function, and of its replacement, by (owner, name)."""
    found = {}
    for repair in repairs:
        module, _, class_name = repair.owner.partition(":")
        holder = importlib.import_module(module)
        holder = getattr(holder, class_name) if class_name else holder
        own = parameters(repair.replacement)
        assert own[0][:2] == ("original", "POSITIONAL_OR_KEYWORD")
        original = getattr(holder, repair.name)._tfdist_original
        found[repair.owner, repair.name] = {"upstream": parameters(original), "ours": own[1:]}
    return found


def parameters(function: Any) -> list[tuple[str, str, bool]]:
    """Returns (name, kind, whether it may be left out) of each parameter."""
    return [
        (p.name, p.kind.name, p.default is not p.empty)
        for p in inspect.signature(function).parameters.values()
    ]


def data(rows: int = 16) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def linear(strategy: Any, *layers: Any, **compile_arguments: Any) -> Any:
    """Returns a model of one Dense layer after `layers`, compiled inside the scope."""
    arguments = {"optimizer": "sgd", "loss": "mse"} | compile_arguments
    with strategy.scope():
        chain = [layer() for layer in layers]
        model = keras.Sequential([keras.Input((4,)), *chain, keras.layers.Dense(1)])
        arguments = {
            key: value() if inspect.isfunction(value) else value for key, value in arguments.items()
        }
        model.compile(**arguments)
    return model


def on_replicas(strategy: Any, function: Callable[[int], Any]) -> list[Any]:
    """Calls `function(replica's number)` on each replica; returns the local results."""

    def replica() -> Any:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        return function(int(tf.get_static_value(index)))

    step = tf.function(lambda: strategy.run(replica), autograph=False)
    return [value.numpy() for value in strategy.experimental_local_results(step())]


def shares(strategy: Any, values: Any, first: int, function: Any) -> list[Any]:
    """Calls `function` with the first `first` rows on replica 0, and the others on replica 1."""
    values = tf.constant(values)
    parts = [values[:first], values[first:]]

    def one(index: int) -> Any:
        return function(parts[index])

    return on_replicas(strategy, one)


def error_of(call: Callable[[], Any]) -> str:
    """Returns the error that a call raises as text, or ""."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
