"""Objects that were created under another strategy than the one that uses them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.errors import ScopeError, explain
from tfdist.keras_bridge.marks import is_tfdist

__all__ = ["check", "refuse_outside_scope", "set_active"]

# The strategy of this process's Runtime, if it has several replicas.
_active: list[Any] = []


def set_active(strategy: Any) -> None:
    """Notes the strategy of the process's Runtime.

    From then on, training a model that was built outside its scope is an error: it would run on
    one device, and on every worker of its own.

    Args:
        strategy: the strategy; one with a single replica is not noted.
    """
    _active[:] = [strategy] if strategy.num_replicas_in_sync > 1 else []


def refuse_outside_scope(model: Any, method: str) -> None:
    """Raises if a model without a strategy is trained where one is in use.

    Args:
        model: a model built outside any strategy of tfdist's.
        method: the method called, for the message.

    Raises:
        ScopeError: if a Runtime with several replicas is active, or the call stands in a tfdist
            strategy's scope.
    """
    if getattr(model, "_distribute_strategy", None) is not None:
        return  # tf.distribute's own strategy: none of our business
    inside = tf.distribute.has_strategy() and is_tfdist(tf.distribute.get_strategy())
    if not inside and not _active:
        return
    raise ScopeError(
        explain(
            f"`{method}` was called on model '{model.name}', which was built outside the "
            "strategy's scope and would train on one device alone",
            received=f"model {type(model).__name__} without a strategy",
            fix="Build and compile the model inside `with runtime.scope():`",
        )
    )


def check(model: Any, strategy: Any) -> None:
    """Raises if the model's optimizer or variables belong to another strategy.

    Args:
        model: a model built under `strategy`.
        strategy: the tfdist strategy.

    Raises:
        ScopeError: naming the object (keras issue 17187).
    """
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    for candidate in (optimizer, inner):
        owner = getattr(candidate, "_distribution_strategy", None)
        if candidate is not None and owner is not None and owner is not strategy:
            raise ScopeError(
                explain(
                    f"The optimizer '{candidate.name}' was created outside the scope of the "
                    "strategy that its model was built under",
                    received=f"{type(candidate).__name__} created under {type(owner).__name__}",
                    fix="Create the optimizer inside `with runtime.scope():`, or pass its name to "
                    "compile, as in model.compile('adam', ...)",
                )
            )
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy:
        raise ScopeError(
            explain(
                f"Model '{model.name}' is used in the scope of another strategy",
                received=f"built under {type(strategy).__name__}, "
                f"used under {type(tf.distribute.get_strategy()).__name__}",
                fix="Use the model outside of any scope, or in the scope it was built in",
            )
        )
    _check_metrics(model, strategy)
    for variable in model.variables:
        value = getattr(variable, "_value", None)
        if value is None:
            continue
        owner = getattr(value, "distribute_strategy", None)
        if owner is not strategy and not (owner is None and strategy.num_replicas_in_sync == 1):
            raise ScopeError(
                explain(
                    f"The variable '{variable.path}' was created outside the scope of the "
                    f"strategy that model '{model.name}' was built under",
                    received=f"a {type(value).__name__}",
                    fix="Build all layers inside `with runtime.scope():`",
                )
            )


def _check_metrics(model: Any, strategy: Any) -> None:
    """Raises if a metric was created outside the scope: the replicas would share its variables."""
    if strategy.num_replicas_in_sync == 1:
        return
    for metric in model.metrics:
        for variable in metric.variables:
            value = getattr(variable, "_value", None)
            if value is not None and getattr(value, "distribute_strategy", None) is not strategy:
                raise ScopeError(
                    explain(
                        f"The metric '{metric.name}' was created outside the scope of the "
                        f"strategy that model '{model.name}' was built under",
                        received=f"{type(metric).__name__} with a {type(value).__name__}",
                        fix="Create metrics inside `with runtime.scope():`, or pass their names "
                        "to compile",
                    )
                )
