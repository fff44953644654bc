"""A `compute_loss` or `compute_metrics` that a model overrides.

They return what one device would: means over the rows they are given, of losses of any making, most
of which no Keras function ever sees. So within them Keras' losses come without the weight of the
replica's rows, and what they return gets it:

    def compute_loss(self, x, y, y_pred, ...):           a mean over the replica's rows:
        loss = super().compute_loss(x, y, y_pred, ...)   mean_r
        return loss + ops.mean(ops.square(y_pred))       mean_r'  ->  (mean_r + mean_r') * w_r
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.keras_bridge import context as step_context

__all__ = ["weigh_own_code"]


def weigh_own_code(model: Any) -> None:
    """Weighs what a model's own `compute_loss` and `compute_metrics` return by the replica's rows.

    Args:
        model: a model under a tfdist strategy; nothing happens to methods that are Keras'.
    """
    for name, weighed in (("compute_loss", _loss), ("compute_metrics", _metrics)):
        own = getattr(type(model), name)
        if not own.__module__.startswith("keras.src.") and name not in vars(model):
            wrapped = functools.wraps(own)(functools.partial(weighed, model, own))
            # On the instance alone, and past Keras' tracking of attributes.
            object.__setattr__(model, name, wrapped)


def _loss(model: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    context = step_context.current()
    if context is None or context.in_own_code:
        return own(model, *args, **kwargs)
    with _own_code(context):
        loss = own(model, *args, **kwargs)
    if loss is None:
        return None
    context.weighted = True
    return context.times_weight(tf.convert_to_tensor(loss))


def _metrics(model: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    context = step_context.current()
    if context is None or context.in_own_code:
        return own(model, *args, **kwargs)
    with _own_code(context):
        results = own(model, *args, **kwargs)
    if context.is_even or not isinstance(results, dict):
        return results
    read = set(model.get_metrics_result())
    for name, value in results.items():
        if name not in read and _is_float_scalar(value):
            results[name] = context.times_weight(value)
            context.own_logs.add(name)
    return results


@contextlib.contextmanager
def _own_code(context: step_context.BatchContext) -> Iterator[None]:
    context.in_own_code = True
    try:
        yield
    finally:
        context.in_own_code = False


def _is_float_scalar(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank == 0
