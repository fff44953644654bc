"""Logs and outputs of a step, over all replicas of all workers."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import UnsupportedError, explain
from tfdist.keras_bridge import log_reading

__all__ = ["concat", "concatenated", "global_logs", "global_metrics", "maybe_global_logs"]


def maybe_global_logs(model: Any, outputs: Any, read: Any, seconds: Any) -> tuple[Any, Any]:
    """Returns the logs of a step if they are to be read, else zeros.

    Logs of a step's own making, which are not the model's metrics, are read at every step.

    Args:
        model: the model; in cross-replica context.
        outputs: per-replica results of its step.
        read: a scalar bool tensor, equal on all workers.
        seconds: a float32 scalar of this worker.

    Returns:
        The logs, and the mean of `seconds` over the replicas: equal on all workers.
    """
    strategy = model.distribute_strategy
    if strategy.tfdist.num_workers == 1 or not isinstance(outputs, dict):
        return global_logs(model, outputs), tf.zeros([])
    local = _first_local(strategy, strategy.run(model.get_metrics_result))
    if set(outputs) != set(local):  # else an epoch's logs are read from the metrics, at its end
        log_reading.of(model).own_logs = True
        return global_logs(model, outputs), tf.zeros([])
    logs, mean_seconds = tf.cond(
        read,
        lambda: _first_local(strategy, strategy.run(_of_all_replicas, args=(model, seconds))),
        lambda: (tf.nest.map_structure(tf.zeros_like, local), tf.zeros([])),
    )
    return {name: logs[name] for name in outputs}, mean_seconds


def global_logs(model: Any, outputs: Any) -> Any:
    """Returns the logs that one device would have, in cross-replica context.

    Args:
        model: the model.
        outputs: per-replica results of its step: a dict of scalars, as a rule.

    Returns:
        A dict of scalar tensors, equal on all workers.
    """
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return keras.tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], outputs
        )
    if not isinstance(outputs, dict):
        return keras.tree.map_structure(lambda value: _mean(strategy, value), outputs)
    logs = {}
    metrics = global_metrics(model)
    for name, value in outputs.items():
        logs[name] = metrics[name] if name in metrics else _mean(strategy, value)
    return logs


def global_metrics(model: Any) -> dict[str, Any]:
    """Returns `model.get_metrics_result()` over all replicas, with one sum of a packed vector.

    Args:
        model: the model; in cross-replica context.

    Returns:
        The results by name.
    """
    strategy = model.distribute_strategy
    results, _ = strategy.run(_of_all_replicas, args=(model, tf.zeros([])))
    return _first_local(strategy, results)


def _first_local(strategy: Any, values: Any) -> Any:
    return keras.tree.map_structure(
        lambda value: strategy.experimental_local_results(value)[0], values
    )


def _of_all_replicas(model: Any, seconds: Any) -> tuple[dict[str, Any], Any]:
    """In replica context: sums the metrics' variables over the replicas, then takes results."""
    from keras.src import backend

    variables = [
        variable
        for metric in model.metrics
        for variable in metric.variables
        if variable.aggregation == "sum"
    ]
    *sums, total_seconds = _summed([*(tf.convert_to_tensor(v.value) for v in variables), seconds])
    replicas = model.distribute_strategy.num_replicas_in_sync
    with backend.StatelessScope(state_mapping=list(zip(variables, sums))):
        return model.get_metrics_result(), total_seconds / replicas


def _summed(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sums tensors over the replicas, one collective for each dtype."""
    replica = tf.distribute.get_replica_context()
    if not tensors or replica.num_replicas_in_sync == 1:
        return tensors
    sums: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = [tf.reshape(tensors[i], [-1]) for i in places]
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.concat(flat, 0))
        sizes = [int(part.shape[0]) for part in flat]
        for i, part in zip(places, tf.split(total, sizes)):
            sums[i] = tf.reshape(part, tensors[i].shape)
    return [sums[i] for i in range(len(tensors))]


def _mean(strategy: Any, value: Any) -> Any:
    """Returns a user's own log value: the mean over the replicas (see `context`)."""
    local = strategy.experimental_local_results(value)[0]
    if not isinstance(local, tf.Tensor):
        return local
    if not local.dtype.is_floating:
        return local
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None)


def concatenated(strategy: Any, outputs: Any) -> Any:
    """Returns per-replica outputs as those of the whole batch, in the order of its rows.

    Args:
        strategy: the strategy; in cross-replica context.
        outputs: nested per-replica tensors, their rows in the order of the replicas.

    Returns:
        The structure with one tensor a leaf, equal on all workers.

    Raises:
        UnsupportedError: if workers would have to exchange sparse or ragged outputs.
    """
    workers = strategy.tfdist.num_workers

    def one(value: Any) -> Any:
        parts = list(strategy.experimental_local_results(value))
        if workers == 1:
            return concat(parts)
        if not isinstance(parts[0], tf.Tensor):
            raise UnsupportedError(
                explain(
                    "Sparse and ragged outputs can't be gathered from several workers",
                    received=type(parts[0]).__name__,
                    fix="Return dense tensors from the model, or predict on one worker",
                )
            )
        if parts[0].shape.rank == 0:
            value = strategy.run(lambda part: tf.expand_dims(part, 0), args=(value,))
        if parts[0].dtype == tf.bool:
            flags = strategy.run(lambda part: tf.cast(part, tf.int32), args=(value,))
            return tf.cast(strategy.gather(flags, axis=0), tf.bool)
        return strategy.gather(value, axis=0)

    return keras.tree.map_structure(one, outputs)


def concat(parts: list[Any]) -> Any:
    """Joins tensors along their rows; stacks scalars."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=parts)
    if isinstance(parts[0], tf.Tensor) and parts[0].shape.rank == 0:
        return tf.stack(parts)
    return tf.concat(parts, axis=0)
