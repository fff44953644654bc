"""Logs and outputs of a step, over all replicas of all workers."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import UnsupportedError, explain

__all__ = ["concat", "concatenated", "global_logs", "global_metrics"]


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
    results = strategy.run(_results_of_all_replicas, args=(model,))
    return keras.tree.map_structure(
        lambda value: strategy.experimental_local_results(value)[0], results
    )


def _results_of_all_replicas(model: Any) -> dict[str, Any]:
    """In replica context: sums the metrics' variables over the replicas, then takes results."""
    from keras.src import backend

    variables = [
        variable
        for metric in model.metrics
        for variable in metric.variables
        if variable.aggregation == "sum"
    ]
    mapping = list(zip(variables, _summed([tf.convert_to_tensor(v.value) for v in variables])))
    with backend.StatelessScope(state_mapping=mapping):
        return model.get_metrics_result()


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
