"""State that each replica keeps for itself, made one before anybody sees or saves it.

The moving statistics of a plain BatchNormalization are updated by each replica from its own rows,
so N replicas hold N different models; Keras evaluates with all of them and saves that of replica 0
(tensorflow issue 18222). Here they are averaged over all replicas of all workers, and the average
is assigned back to each. Training does not notice: the statistics are not read in training, and
averaging commutes with their update m <- a * m + (1 - a) * batch, which is linear, so that the
average comes out the same however often it is taken.

The same holds for any float state that a layer declares with `add_weight(trainable=False)` and the
default `aggregation`; a layer whose state must not be averaged says
`aggregation="only_first_replica"`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_bridge.marks import strategy_of

__all__ = ["readable_by_one", "sync_batch_statistics"]


def sync_batch_statistics(model: Any) -> int:
    """Averages the statistics that each replica of a model keeps for itself, on all replicas.

    All workers must call it, outside of a step: it takes one collective. `fit` calls it at the end
    of each epoch, `evaluate`, `predict` and every save before they begin.

    Args:
        model: a model; nothing happens unless it was built under a tfdist strategy.

    Returns:
        The number of variables that were averaged.
    """
    strategy = strategy_of(model)
    if strategy is None or strategy.num_replicas_in_sync == 1 or not model.built:
        return 0
    variables = [v for layer in model._flatten_layers() for v in _own_statistics(layer)]
    variables = list({id(v): v for v in variables}.values())  # a layer may be used twice
    if variables:
        average = _mean_over_replicas(strategy, [v._value for v in variables])
        for variable, value in zip(variables, average):
            variable.assign(value)
    return len(variables)


def _own_statistics(layer: Any) -> list[Any]:
    """Returns the variables of a layer that each of its replicas updates by itself."""
    if not layer.trainable or getattr(layer, "synchronized", False):
        return []  # frozen, or updated from all replicas' rows
    return [
        variable
        for variable in getattr(layer, "_non_trainable_variables", ())
        if variable.aggregation == "none"
        and variable.synchronization != "on_read"
        and "float" in keras.backend.standardize_dtype(variable.dtype)
        and isinstance(variable._value, tf.distribute.DistributedValues)
    ]


def _mean_over_replicas(strategy: Any, variables: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the means over all replicas, with one collective for all variables."""
    wide = tf.float64 if any(v.dtype == tf.float64 for v in variables) else tf.float32
    copies = [strategy.experimental_local_results(v) for v in variables]
    local = len(copies[0])
    flat = [
        tf.concat([tf.reshape(tf.cast(of_one[i], wide), [-1]) for of_one in copies], axis=0)
        for i in range(local)
    ]
    per_replica = strategy.experimental_distribute_values_from_function(
        lambda context: flat[context.replica_id_in_sync_group % local]
    )
    mean = strategy.reduce(tf.distribute.ReduceOp.MEAN, per_replica, axis=None)
    parts = tf.split(mean, [v.shape.num_elements() for v in variables])
    return [tf.cast(tf.reshape(part, v.shape), v.dtype) for part, v in zip(parts, variables)]


@contextlib.contextmanager
def readable_by_one(model: Any) -> Iterator[None]:
    """Lets one worker read, in the block, variables whose value is spread over all replicas.

    Reading a variable with `synchronization="on_read"` is a collective, in which a worker that
    writes alone would wait for ever. All workers must enter the block: each such variable is read
    here, by all, and stands in for itself as a constant until the block ends.

    Args:
        model: a model built under a tfdist strategy.
    """
    strategy = strategy_of(model)
    spread = []
    if strategy is not None and strategy.tfdist.num_workers > 1:
        spread = [
            v
            for v in model.variables
            if v.synchronization == "on_read" and not isinstance(v._value, tf.Tensor)
        ]
    values = [tf.convert_to_tensor(v._value) for v in spread]
    kept = [v._value for v in spread]
    try:
        for variable, value in zip(spread, values):
            variable._value = value
        yield
    finally:
        for variable, value in zip(spread, kept):
            variable._value = value
