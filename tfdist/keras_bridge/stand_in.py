"""A row in the place of none: what a replica without rows computes on.

Some operations can't run on no rows (oneDNN's fused convolutions return a wrong shape, reshapes
can't tell their size, means are NaN), and a replica can't be left out of a step, since the others
wait for it in their sums. So it gets one row of zeros, and leaves no trace of it:

    losses, gradients     have weight 0 (see `context`)
    metrics, other state  get their values from before the step back
    predictions           are cut off
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_bridge import context as step_context

__all__ = ["may_be_empty", "state_kept", "with_stand_in", "without_stand_in"]


def may_be_empty(rows: Any) -> bool:
    """Returns whether a replica with `rows` rows, an int or a tensor, may have none."""
    return not isinstance(rows, int) or rows == 0


def with_stand_in(data: Any, rows: Any) -> Any:
    """Returns a replica's data, or one row of zeros if it has none.

    Args:
        data: nested tensors; sparse and ragged ones are left as they are.
        rows: how many rows they have, an int or a scalar tensor.
    """

    def zeros(leaf: Any) -> Any:
        return tf.zeros(tf.concat([[1], tf.shape(leaf)[1:]], 0), leaf.dtype)

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return leaf
        if isinstance(rows, int):
            result = zeros(leaf)
        else:
            result = tf.cond(rows > 0, lambda: leaf, lambda: zeros(leaf))
        result.set_shape([None if not isinstance(rows, int) else 1, *leaf.shape[1:]])
        return result

    return tf.nest.map_structure(one, data) if may_be_empty(rows) else data


def without_stand_in(outputs: Any, rows: Any) -> Any:
    """Cuts predictions to the replica's own rows."""
    if not may_be_empty(rows):
        return outputs

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return leaf
        return tf.cond(tf.greater(rows, 0), lambda: leaf, lambda: leaf[:0])

    return keras.tree.map_structure(one, outputs)


@contextlib.contextmanager
def state_kept(model: Any, rows: Any) -> Iterator[None]:
    """Runs a replica's step; without rows it leaves metrics and the layers' state as they were.

    BatchNormalization is left out, since it has its own ways (see `layers`).
    """
    if not may_be_empty(rows):
        yield
        return
    variables = _state(model)
    before = [tf.identity(tf.convert_to_tensor(variable.value)) for variable in variables]
    yield
    has_rows = tf.greater(rows, 0)
    with step_context.local_updates():
        for variable, value in zip(variables, before):
            variable.assign(tf.where(has_rows, tf.convert_to_tensor(variable.value), value))


def _state(model: Any) -> list[Any]:
    """Returns the variables that a step changes besides the weights and the optimizer."""
    own = {
        id(variable)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        for variable in layer.variables
    }
    layers = [
        variable
        for variable in model.non_trainable_variables
        if id(variable) not in own
        and keras.backend.is_float_dtype(variable.dtype)
        and variable.aggregation == "none"  # others are the same on all replicas
    ]
    # The trackers of several outputs' losses count replicas, not rows: 0 is what they need to see.
    trackers = {id(metric) for metric in getattr(model._compile_loss, "metrics", ())}
    metrics = [
        variable
        for metric in model.metrics
        if id(metric) not in trackers
        for variable in metric.variables
    ]
    return list({id(variable): variable for variable in [*layers, *metrics]}.values())
