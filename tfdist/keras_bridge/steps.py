"""The functions that Keras' loops call once per step: train, test and predict.

One step, on every worker:

    element (one dict a replica)
      -> strategy.run(replica step)          forward, loss, backward, optimizer.apply
           optimizer.apply                   ONE sum of the gradients over all replicas
      -> logs                                one packed sum of the metrics' variables
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_bridge import context as step_context
from tfdist.keras_bridge import input as step_input
from tfdist.keras_bridge import log_reading, own_code, stand_in
from tfdist.keras_bridge import metrics as step_metrics
from tfdist.keras_bridge.stock_steps import jit_step

__all__ = ["StepIterator", "predict_function", "replica_step", "step_function", "weighted_logs"]


class StepIterator:
    """An iterator over elements, with how many of them the next call may take.

    Attributes:
        iterator: the `tf.distribute.DistributedIterator`.
        steps: how many elements are there for sure, at most `steps_per_execution`; None when the
            number of batches is unknown.
    """

    def __init__(self, iterator: Any, steps: int | None) -> None:
        self.iterator = iterator
        self.steps = steps

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.iterator)


def step_function(model: Any, step: Callable[[Any], Any], after_step: Any) -> Callable[[Any], Any]:
    """Makes the function that Keras' `fit` or `evaluate` calls per execution.

    Args:
        model: the compiled model, built under a tfdist strategy.
        step: `model.train_step` or `model.test_step`.
        after_step: called with (model, element) after each execution, in Python.

    Returns:
        A function from an iterator to the logs: a dict of scalar tensors, equal on all workers.
    """
    strategy = model.distribute_strategy
    run_step = replica_step(model, step)
    own_code.weigh_own_code(model)

    @tf.autograph.experimental.do_not_convert
    def one_step(element: Any) -> Any:
        return strategy.run(run_step, args=(element,))

    @tf.autograph.experimental.do_not_convert
    def execute(iterator: Any, extra_steps: Any, read: Any, seconds: Any) -> tuple[Any, Any, Any]:
        element = iterator.get_next()
        outputs = one_step(element)
        if model.steps_per_execution > 1:
            condition = lambda i: i < extra_steps  # noqa: E731
            body = lambda i: _then(strategy, one_step(iterator.get_next()), i + 1)  # noqa: E731
            # Custom logs are those of the execution's first step; metrics are of all its steps.
            tf.while_loop(condition, body, [tf.constant(0)], parallel_iterations=1)
        logs, seconds = step_metrics.maybe_global_logs(model, outputs, read, seconds)
        return logs, _checksum(strategy, element), seconds

    @tf.autograph.experimental.do_not_convert
    def execute_element(element: Any) -> tuple[Any, Any]:
        return step_metrics.global_logs(model, one_step(element)), _checksum(strategy, element)

    if not model.run_eagerly:
        execute = tf.function(execute, reduce_retracing=True)
        execute_element = tf.function(execute_element, reduce_retracing=True)

    reading = log_reading.of(model)
    last_logs: Any = None

    def function(iterator: Any) -> Any:
        nonlocal last_logs
        if not isinstance(iterator, StepIterator):
            # train_on_batch and test_on_batch give a generator of one global batch.
            element = step_input.distribute_batch(strategy, next(iter(iterator)))
            logs, _ = execute_element(element)
            return logs
        if iterator.steps is None:
            return _until_out_of_range(model, execute, iterator)
        if model.run_eagerly:
            for _ in range(iterator.steps):
                logs, checksum = execute_element(next(iterator))
        else:
            read = reading.begin_step()
            logs, checksum, seconds = execute(
                iterator.iterator,
                tf.constant(iterator.steps - 1),
                tf.constant(read),
                tf.constant(reading.seconds(), tf.float32),
            )
            reading.end_step(read, float(seconds) if read else 0.0)
            last_logs = logs if read else last_logs
            logs = last_logs
        after_step(model, checksum)
        return logs

    return function


def predict_function(model: Any) -> Callable[[list[Any]], Any]:
    """Makes the function that Keras' `predict` calls per execution.

    Args:
        model: a model built under a tfdist strategy.

    Returns:
        A function from a list of elements to the outputs of all replicas of all workers, in the
        order of the rows.
    """
    strategy = model.distribute_strategy
    run_step = replica_step(model, model.predict_step)

    @tf.autograph.experimental.do_not_convert
    def execute(elements: list[Any]) -> Any:
        results = [
            step_metrics.concatenated(strategy, strategy.run(run_step, args=(element,)))
            for element in elements
        ]
        if len(results) == 1:
            return results[0]
        return keras.tree.map_structure(lambda *parts: step_metrics.concat(list(parts)), *results)

    if not model.run_eagerly:
        execute = tf.function(execute, reduce_retracing=True)

    def function(elements: list[Any]) -> Any:
        if not step_input.is_element(elements[0]):  # predict_on_batch gives [(x,)]
            elements = [step_input.distribute_batch(strategy, data) for data in elements]
        return execute(elements)

    return function


def replica_step(
    model: Any, step: Callable[[Any], Any], may_jit: bool = True
) -> Callable[[Any], Any]:
    """Makes the function that each replica runs on its element.

    Args:
        model: the model, built under a tfdist strategy.
        step: its `train_step`, `test_step` or `predict_step`.
        may_jit: whether XLA can compile it where the model asks for that.

    Returns:
        A function from an element (see `input`) to what the step returns.
    """
    strategy = model.distribute_strategy
    predicts = step.__name__ == "predict_step"

    def run(element: Any, jit: bool) -> Any:
        data = step_input.without_optionals(element[step_input.DATA])
        if step_input.ROWS in element:
            # Replicas of one trace must not differ in what is static: their sums have to pair up.
            data = step_input.with_dynamic_rows(data)
        rows, global_rows = _rows(strategy, data, element)
        context = step_context.BatchContext(
            strategy.num_replicas_in_sync, rows, global_rows, jit=jit
        )
        data = stand_in.with_stand_in(data, rows)
        if predicts:
            return stand_in.without_stand_in(call(data, context), rows)
        with stand_in.state_kept(model, rows):
            return call(data, context)

    def call(data: Any, context: step_context.BatchContext) -> Any:
        if context.jit:
            return jit_step(model, step, data, context)
        with step_context.entered(context):
            outputs = step(data)
            return outputs if predicts else weighted_logs(model, outputs, context)

    @tf.autograph.experimental.do_not_convert
    def run_replica(element: Any) -> Any:
        # Nothing of a step may run where the data has ended, such as counting it.
        leaves = tf.nest.flatten(element, expand_composites=True)
        arrived = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
        with tf.control_dependencies([] if tf.executing_eagerly() else arrived):
            return run_maybe_compiled(element)

    def run_maybe_compiled(element: Any) -> Any:
        jit = may_jit and model.jit_compile and not getattr(model, _NO_JIT, False)
        jit = jit and not strategy.tfdist.compiles
        if not jit or model.run_eagerly:
            return run(element, jit=False)
        try:
            return run(element, jit=True)
        except step_context.CollectiveInJit:
            setattr(model, _NO_JIT, True)
            warnings.warn(
                "This model needs a sum over the replicas in its forward pass (a masked loss, or "
                "BatchNormalization(synchronized=True)), which XLA can't compile: "
                "`jit_compile=True` is ignored.",
                stacklevel=2,
            )
            return run(element, jit=False)

    return run_replica


_NO_JIT = "_tfdist_no_jit"


def _rows(strategy: Any, data: Any, element: dict[str, Any]) -> tuple[Any, Any]:
    """Returns this replica's rows and the global batch's."""
    replicas = strategy.num_replicas_in_sync
    leaf = next(leaf for leaf in tf.nest.flatten(data) if leaf is not None)
    static = leaf.shape[0] if isinstance(leaf, tf.Tensor) and leaf.shape.rank else None
    if step_input.ROWS in element:
        return step_input.dynamic_rows(leaf), tf.cast(element[step_input.ROWS], tf.int32)
    if replicas == 1:
        return (1, 1) if static is None else (static, static)
    if static is not None:
        return static, static * replicas
    rows = step_input.dynamic_rows(leaf)
    total = step_context.replica_sum(tf.cast(rows, tf.float32))
    return rows, tf.cast(total, tf.int32)


def weighted_logs(model: Any, outputs: Any, context: step_context.BatchContext) -> Any:
    """Weighs the values that a custom step returns from its own, unweighted losses.

    Args:
        model: the model.
        outputs: what its step returned.
        context: the step that the replica was in.
    """
    if context.weighted or context.is_even or not isinstance(outputs, dict):
        return outputs
    names = set(model.get_metrics_result()) if model.compiled else set()
    names |= context.own_logs
    return {
        name: context.times_weight(value)
        if name not in names
        and isinstance(value, tf.Tensor)
        and value.dtype.is_floating
        and value.shape.rank == 0
        else value
        for name, value in outputs.items()
    }


def _until_out_of_range(model: Any, execute: Any, iterator: StepIterator) -> Any:
    """Takes up to `steps_per_execution` steps one by one, where the data may end at any."""
    logs = None
    for _ in range(model.steps_per_execution):
        try:
            logs, _, _ = execute(
                iterator.iterator, tf.constant(0), tf.constant(True), tf.constant(0.0)
            )
        except tf.errors.OutOfRangeError:
            if logs is None:
                raise
            break
    return logs


def _checksum(strategy: Any, element: dict[str, Any]) -> Any:
    checksum = element.get(step_input.CHECKSUM)
    if checksum is None:
        return tf.zeros([], tf.int64)
    return strategy.experimental_local_results(checksum)[0]


def _then(strategy: Any, outputs: Any, index: Any) -> Any:
    """Returns `index` after every operation that made `outputs`."""
    tensors = [
        tensor
        for value in tf.nest.flatten(outputs)
        for tensor in strategy.experimental_local_results(value)
        if isinstance(tensor, tf.Tensor)
    ]
    with tf.control_dependencies(tensors):
        return tf.identity(index)
