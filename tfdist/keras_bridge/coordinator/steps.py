"""The functions that Keras' loops call on a coordinator: they hand steps to the workers.

    Keras' loop            train_function(feed)       worker 0   step step step ...
      for each execution     reserve (in_flight)  ->  worker 1   step step step ...
                             schedule             <-  ps         variables, slots, metrics
      end of the epoch       settle: all are done, then the metrics are read

A step is scheduled, not waited for, so the logs that a batch's callbacks see are those of about a
second ago. With one worker, callbacks that read each batch's logs get exact ones, step by step.
"""

from __future__ import annotations

import collections
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import UnsupportedError, explain
from tfdist.keras_bridge import input as step_input
from tfdist.keras_bridge import log_reading
from tfdist.keras_bridge import metrics as step_metrics
from tfdist.keras_bridge.coordinator import metric_updates
from tfdist.keras_bridge.coordinator.feeding import Feed
from tfdist.keras_bridge.steps import replica_step

__all__ = [
    "Reading",
    "check",
    "global_logs",
    "look_ahead",
    "note_own_logs",
    "predict_function",
    "read_metrics",
    "sendable",
    "spec_of",
    "step_function",
]

_PERIOD = 1.0  # seconds between two readings of the metrics
_OWN_LOGS = "_tfdist_own_logs"  # a model's: the latest logs that are in no metric


def check(model: Any) -> None:
    """Refuses what can't be handed to a worker.

    Args:
        model: a compiled model under a strategy that coordinates.

    Raises:
        UnsupportedError: the model is to run eagerly.
    """
    if model.jit_compile:
        warnings.warn(
            "Variables on parameter servers can't be part of a program that XLA compiles: "
            "`jit_compile=True` is ignored.",
            stacklevel=2,
        )
    if model.run_eagerly:
        raise UnsupportedError(
            explain(
                "A coordinator hands graphs to its workers, so a model can't run eagerly there",
                received="run_eagerly=True",
                fix="Leave out run_eagerly, or debug under strategy='single'",
            )
        )


def step_function(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes the function that Keras' `fit` or `evaluate` calls per execution.

    Args:
        model: the compiled model, built under a strategy that coordinates.
        step: `model.train_step` or `model.test_step`.

    Returns:
        A function from a `Feed` to the latest logs: a dict of floats, empty before the first.
    """
    check(model)
    marker = model.distribute_strategy.tfdist
    pool = marker.pool
    in_step = pool.num_workers == 1 or marker.synchronous
    metric_updates.add_up(model)
    functions = _Functions(model, step)
    reading = Reading(model)
    trains = step.__name__ == "train_step"

    def function(feed: Any) -> Any:
        if not isinstance(feed, Feed):  # train_on_batch and test_on_batch: a generator of one batch
            pool.settle()
            pending = functions.hand_out([next(iter(feed))])
            note_own_logs(model, pending[-1].result())
            pool.settle()
            return reading.now()
        pool.reserve()
        if feed.per_worker is not None:
            pending = [functions.hand_out_own(feed.per_worker, feed.steps)]
        else:
            pending = functions.hand_out(feed.take())
        if functions.has_own_logs or (in_step and log_reading.of(model).always):
            note_own_logs(model, pending[-1].result())
            pool.settle()
            return reading.now()
        return reading.lately()

    if trains:
        setattr(model, _OWN_LOGS, {})
    return function


class _Functions:
    """The graphs of one kind of step, by the structure of their data."""

    def __init__(self, model: Any, step: Callable[[Any], Any]) -> None:
        self._model = model
        self._strategy = model.distribute_strategy
        self._pool = self._strategy.tfdist.pool
        self._run_step = replica_step(model, step, may_jit=False)
        self._graphs: dict[Any, Any] = {}
        self.has_own_logs = False

    def hand_out(self, batches: list[Any]) -> list[Any]:
        """Schedules steps on batches that the coordinator has read."""
        batches = [sendable(batch) for batch in batches]
        if len(batches) > 1 and _are_alike(batches):
            stacked = tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *batches)
            graph = self._graph("stacked", self._run_stacked, stacked, unknown=2)
            return [self._pool.schedule(graph, (stacked,))]
        return [
            self._pool.schedule(self._graph("one", self._run_one, batch, unknown=1), (batch,))
            for batch in batches
        ]

    def hand_out_own(self, iterators: Any, steps: int) -> Any:
        """Schedules steps on the next batches of whichever worker takes them."""
        graph = self._graphs.get("own")
        if graph is None:
            graph = self._graphs["own"] = tf.function(self._run_own, autograph=False)
        return self._pool.schedule(graph, (iterators, tf.constant(steps)))

    def _graph(self, kind: str, run: Callable[..., Any], data: Any, unknown: int) -> Any:
        spec = tf.nest.map_structure(lambda leaf: spec_of(leaf, unknown), data)
        flat = tuple(tf.nest.flatten(spec))
        key = (kind, str(tf.nest.map_structure(lambda _: 0, spec)), flat)
        if key not in self._graphs:
            with self._strategy.scope():
                function = tf.function(run, autograph=False)
                self._graphs[key] = function.get_concrete_function(spec)
        return self._graphs[key]

    def _run_one(self, data: Any) -> Any:
        element = {step_input.DATA: data}
        outputs = self._strategy.run(self._run_step, args=(element,))
        return self._own_logs(outputs)

    def _run_stacked(self, stacked: Any) -> Any:
        logs = self._run_one(tf.nest.map_structure(lambda leaf: leaf[0], stacked))
        total = tf.shape(tf.nest.flatten(stacked)[0])[0]

        def body(i: Any) -> Any:
            rest = self._run_one(tf.nest.map_structure(lambda leaf: leaf[i], stacked))
            with tf.control_dependencies(tf.nest.flatten(rest)):
                return i + 1

        with tf.control_dependencies(tf.nest.flatten(logs)):
            start = tf.constant(1)
        tf.while_loop(lambda i: i < total, body, [start], parallel_iterations=1)
        return logs

    def _run_own(self, iterator: Any, steps: Any) -> Any:
        logs = self._run_one(next(iterator))

        def body(i: Any) -> Any:
            rest = self._run_one(next(iterator))
            with tf.control_dependencies(tf.nest.flatten(rest)):
                return i + 1

        tf.while_loop(lambda i: i < steps, body, [tf.constant(1)], parallel_iterations=1)
        return logs

    def _own_logs(self, outputs: Any) -> dict[str, Any]:
        if not isinstance(outputs, dict):
            return {}
        known = set(self._model.get_metrics_result()) if self._model.compiled else set()
        own = {name: value for name, value in outputs.items() if name not in known}
        self.has_own_logs = self.has_own_logs or bool(own)
        return own


class Reading:
    """Reads the metrics, at most about once a second while steps are under way."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._logs: dict[str, float] = {}
        self._next = 0.0

    def now(self) -> dict[str, Any]:
        self._logs = global_logs(self._model)
        self._next = time.monotonic() + _PERIOD
        return self._logs

    def lately(self) -> dict[str, Any]:
        if self._next == 0.0:  # nothing is done yet
            self._next = time.monotonic() + _PERIOD
            return {}
        return self._logs if time.monotonic() < self._next else self.now()


def global_logs(model: Any) -> dict[str, Any]:
    """Returns the metrics as they are on the parameter servers, and the last step's own logs."""
    return {**getattr(model, _OWN_LOGS, {}), **read_metrics(model)}


def read_metrics(model: Any) -> dict[str, float]:
    """Returns `model.get_metrics_result()` with one call.

    Args:
        model: a compiled model, none of whose steps is under way if the result has to be exact.
    """
    names = tuple(model.metrics_names)
    cached = getattr(model, "_tfdist_read_metrics", None)
    if cached is None or cached[0] != names or cached[1] is not model._loss_tracker:
        cached = (names, model._loss_tracker, tf.function(model.get_metrics_result))
        object.__setattr__(model, "_tfdist_read_metrics", cached)
    with model.distribute_strategy.tfdist.pool.explained():
        return keras.tree.map_structure(_plain, cached[2]())


def _plain(value: Any) -> Any:
    """Returns a metric's value as a float, or as an array where it has several."""
    value = value.numpy()
    return float(value) if value.ndim == 0 else value


def note_own_logs(model: Any, outputs: Any) -> None:
    if outputs:
        setattr(model, _OWN_LOGS, outputs)


def predict_function(model: Any) -> Callable[[list[Any]], Any]:
    """Makes the function that Keras' `predict` calls per execution.

    Args:
        model: a model built under a strategy that coordinates.

    Returns:
        A function from a list of what the feed gave, or of batches, to their outputs.
    """
    hand_out = _predictor(model)

    def function(given: list[Any]) -> Any:
        results = [
            one.value if isinstance(one, _Predicted) else hand_out(one).result() for one in given
        ]
        if len(results) == 1:
            return results[0]
        return keras.tree.map_structure(lambda *parts: step_metrics.concat(list(parts)), *results)

    return function


class _Predicted:
    """The outputs of a batch; keeps Keras from looking into them."""

    def __init__(self, value: Any) -> None:
        self.value = value


def look_ahead(model: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns what turns batches into outputs, in their order, with all workers busy.

    Args:
        model: the model that predicts.
    """
    pool = model.distribute_strategy.tfdist.pool
    hand_out = _predictor(model)

    def predicted(batches: Iterator[Any]) -> Iterator[Any]:
        ahead: collections.deque[Any] = collections.deque()
        for batch in batches:
            ahead.append(hand_out(batch))
            if len(ahead) >= pool.in_flight * pool.num_workers:
                yield _Predicted(ahead.popleft().result())
        while ahead:
            yield _Predicted(ahead.popleft().result())

    return predicted


def _predictor(model: Any) -> Callable[[Any], Any]:
    if model.compiled:
        check(model)
    pool = model.distribute_strategy.tfdist.pool
    pool.settle()
    functions = _PredictFunctions(model, model.predict_step)
    return lambda batch: functions.hand_out([batch])[0]


class _PredictFunctions(_Functions):
    def _own_logs(self, outputs: Any) -> Any:
        return outputs


def sendable(batch: Any) -> Any:
    """Returns a batch as tensors, with None for what is not there."""
    return tf.nest.map_structure(
        lambda leaf: (
            leaf
            if leaf is None or isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor))
            else tf.convert_to_tensor(leaf)
        ),
        step_input.without_optionals(batch),
    )


def _are_alike(batches: list[Any]) -> bool:
    """Returns whether batches can be stacked: dense, and of the same shapes."""
    shapes = [
        tuple(
            leaf.shape if isinstance(leaf, tf.Tensor) else None for leaf in tf.nest.flatten(batch)
        )
        for batch in batches
    ]
    return None not in shapes[0] and all(one == shapes[0] for one in shapes)


def spec_of(leaf: Any, unknown: int) -> Any:
    """Returns a leaf's type with its first `unknown` sizes left open."""
    if leaf is None:
        return None
    if not isinstance(leaf, tf.Tensor):
        return tf.type_spec_from_value(leaf)
    shape = leaf.shape.as_list()
    return tf.TensorSpec([None] * min(unknown, len(shape)) + shape[unknown:], leaf.dtype)
