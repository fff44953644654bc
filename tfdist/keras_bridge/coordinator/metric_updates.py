"""Metrics that several workers update at the same time.

A metric adds to its variables by reading, adding and assigning, so that of two workers' updates at
the same moment one is lost. Here a worker lets the metric count from zero, on its own, and the
parameter server adds what came out in one operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src import backend
from keras.src.backend.common.stateless_scope import in_stateless_scope

__all__ = ["add_up", "contributions"]


def add_up(model: Any) -> None:
    """Makes the model's metrics safe to be updated by several workers at once.

    Args:
        model: a model under a strategy that coordinates.
    """
    for metric in model.metrics:
        if "update_state" not in vars(metric):
            own = type(metric).update_state
            wrapped = functools.wraps(own)(functools.partial(_update, metric, own))
            # On the instance alone, and past Keras' tracking of attributes.
            object.__setattr__(metric, "update_state", wrapped)


def _update(metric: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if in_stateless_scope() or tf.executing_eagerly():
        return own(metric, *args, **kwargs)
    variables = list(metric.variables)
    with backend.StatelessScope(state_mapping=contributions(variables)) as scope:
        own(metric, *args, **kwargs)
    for variable in variables:
        value = scope.get_current_value(variable)
        if variable.aggregation == "sum":
            variable._value.assign_add(tf.cast(value, variable._value.dtype))
        elif value is not None:
            variable._value.assign(tf.cast(value, variable._value.dtype))
    return None


def contributions(variables: list[Any]) -> list[tuple[Any, Any]]:
    """Returns what a step counts from: zero, for the variables that are sums over the replicas.

    Args:
        variables: variables of metrics.
    """
    return [
        (variable, tf.zeros(variable.shape, variable.dtype))
        for variable in variables
        if variable.aggregation == "sum"
    ]
