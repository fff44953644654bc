r"""Steps that all workers do together: gradients of the same weights, applied once.

    global batch of n rows        rows 0..            rows ..            ... one part per worker
                                     |                   |
    on whichever worker is free   forward, backward   forward, backward  on the weights of step t
                                     \                 /
    on the coordinator            sum of the gradients -> clip, accumulate, update of step t

A part changes nothing on the parameter servers: what it computes (gradients, what it adds to each
metric, statistics of BatchNormalization) comes back as its result and is applied once. So a worker
may fail in the middle and its part be computed again elsewhere without being counted twice.

With `backup_workers` the step takes the first gradients that arrive and drops the rest (Chen et al.
2016, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src import backend

from tfdist.errors import UnsupportedError, explain
from tfdist.keras_bridge import context as step_context
from tfdist.keras_bridge import input as step_input
from tfdist.keras_bridge import log_reading, optimizer, own_code
from tfdist.keras_bridge.coordinator import metric_updates, steps
from tfdist.keras_bridge.coordinator.feeding import Feed
from tfdist.keras_bridge.coordinator.packing import Packing
from tfdist.keras_bridge.steps import weighted_logs

__all__ = ["train_function"]

_LOOK = 0.02  # seconds between two looks at which gradients have arrived


def train_function(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes the function that Keras' `fit` calls per execution.

    Args:
        model: the compiled model, built under a strategy that coordinates synchronously.
        step: `model.train_step`.

    Returns:
        A function from a `Feed` to the logs.
    """
    steps.check(model)
    own_code.weigh_own_code(model)
    pool = model.distribute_strategy.tfdist.pool
    trainer = _Trainer(model, step)
    reading = steps.Reading(model)

    def function(feed: Any) -> Any:
        batches = feed.take() if isinstance(feed, Feed) else [next(iter(feed))]
        pool.settle()
        for batch in batches:
            trainer.train_on(steps.sendable(batch))
        if trainer.has_own_logs or log_reading.of(model).always or not isinstance(feed, Feed):
            return reading.now()
        return reading.lately()

    return function


class _Trainer:
    """Does one step after the other."""

    def __init__(self, model: Any, step: Callable[[Any], Any]) -> None:
        self._model = model
        self._step = step
        self._strategy = model.distribute_strategy
        self._marker = self._strategy.tfdist
        self._pool = self._marker.pool
        self._graphs: dict[Any, _Graphs] = {}
        with self._strategy.scope():
            # Counts the steps that were applied, so that a worker can tell a part that comes too late.
            self._clock = tf.Variable(0, dtype=tf.int64, trainable=False, name="synchronous_steps")
        self._step_number = 0
        self.has_own_logs = False

    def train_on(self, batch: Any) -> None:
        """Does one step on a global batch."""
        leaf = next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None)
        rows = int(step_input.row_count(leaf))
        parts = max(min(self._pool.num_workers, rows), 1)
        graphs = self._graphs_for(batch, parts)
        pending = []
        for index in range(parts):
            share = _rows_of(batch, *step_input.row_range(rows, index, parts))
            arguments = (
                share,
                tf.constant(rows),
                tf.constant(index),
                tf.constant(self._step_number, tf.int64),
            )
            pending.append(self._pool.schedule(graphs.part, arguments))
        used = self._first(pending, parts - min(self._marker.backup_workers, parts - 1))
        self._marker.dropped_gradients += parts - len(used)
        results = [one.result() for one in used]
        with self._pool.explained():
            graphs.apply(results)
        self._step_number += 1
        if results[0]["own"]:
            self.has_own_logs = True
            steps.note_own_logs(self._model, _mean_of(results))

    def _first(self, pending: list[Any], wanted: int) -> list[Any]:
        """Returns the steps that were done first, in the order of their rows."""
        if wanted == len(pending):
            return pending
        looked = time.monotonic()
        while True:
            done = [one for one in pending if one.is_done]
            if len(done) >= wanted:
                return done
            next(one for one in pending if not one.is_done).wait(_LOOK)
            if time.monotonic() - looked > 1.0:
                self._pool.check()
                looked = time.monotonic()

    def _graphs_for(self, batch: Any, parts: int) -> _Graphs:
        spec = tf.nest.map_structure(lambda leaf: steps.spec_of(leaf, 1), batch)
        key = (str(tf.nest.map_structure(lambda _: 0, spec)), *tf.nest.flatten(spec), parts)
        if key not in self._graphs:
            with self._strategy.scope():
                self._graphs[key] = self._trace(spec, parts)
        return self._graphs[key]

    def _trace(self, spec: Any, parts: int) -> _Graphs:
        packing = Packing()
        updates: list[_Update] = []

        def compute(data: Any, rows: Any, index: Any) -> dict[str, Any]:
            return self._strategy.run(
                lambda: self._part(data, rows, index, parts, packing, updates)
            )

        def part(data: Any, rows: Any, index: Any, number: Any) -> dict[str, Any]:
            if not self._marker.backup_workers:
                return compute(data, rows, index)
            # Nobody waits any more for a part of a step that is over.
            return tf.cond(
                self._clock > number,
                lambda: _nothing(packing.outputs),
                lambda: compute(data, rows, index),
            )

        int_spec, long_spec = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64)
        if self._marker.backup_workers:  # what "nothing" looks like is known after a first trace
            tf.function(compute, autograph=False).get_concrete_function(spec, int_spec, int_spec)
        traced = tf.function(part, autograph=False).get_concrete_function(
            spec, int_spec, int_spec, long_spec
        )

        def apply(results: list[Any]) -> None:
            self._strategy.run(lambda: self._apply(results, packing, updates))
            self._clock.assign_add(1)

        return _Graphs(traced, tf.function(apply, autograph=False, reduce_retracing=True))

    def _part(
        self, data: Any, rows: Any, index: Any, parts: int, packing: Packing, updates: list[_Update]
    ) -> dict[str, Any]:
        """Computes one part of a step, in replica context on a worker."""
        model = self._model
        leaf = next(leaf for leaf in tf.nest.flatten(data) if leaf is not None)
        own_rows = step_input.dynamic_rows(leaf)
        context = step_context.BatchContext(parts, own_rows, rows, part=index)
        summed = metric_updates.contributions(
            [v for metric in model.metrics for v in metric.variables]
        )
        with (
            backend.StatelessScope(state_mapping=summed, collect_losses=True) as scope,
            step_context.entered(context),
            optimizer.kept_gradients() as kept,
        ):
            for variable in model.trainable_variables:
                # Keras asks the scope for what a regularizer is of; the tape needs the variable.
                scope.state_mapping[id(variable)] = variable._value
            with _explained():
                outputs = weighted_logs(model, self._step(data), context)
            known = set(model.get_metrics_result()) if model.compiled else set()
        inner = getattr(model.optimizer, "_inner_optimizers", ())  # a MultiOptimizer's
        if len(kept) > 1 and not all(one.optimizer in inner for one in kept):
            raise UnsupportedError(
                explain(
                    "The workers of a step compute gradients of the same weights, so a step may update "
                    "them once only",
                    received=f"a train_step that calls apply {len(kept)} times",
                    fix="Use strategy='multi_worker', or asynchronous parameter servers "
                    "(synchronous=False)",
                )
            )
        updates[:] = [_Update(one.optimizer, one.variables) for one in kept]
        tensors: list[Any] = [own_rows, rows]
        for one in kept:
            for gradient, variable in zip(one.gradients, one.variables):
                if isinstance(gradient, tf.Tensor):  # of which some have lost their static shape
                    gradient.set_shape(variable.shape)
            tensors += optimizer.scaled_share(one.gradients, context)
        sums = {id(variable) for variable, _ in summed}
        for variable in _state_of(model):
            value = scope.get_current_value(variable)
            if value is not None:
                value = tf.cast(tf.convert_to_tensor(value), variable.dtype)
                if variable.aggregation == "sum" and id(variable) not in sums:
                    value -= tf.convert_to_tensor(variable._value)  # a layer's own: what it adds
                updates.append(_Update(None, [variable]))
                tensors.append(value)
        own = {
            name: value
            for name, value in (outputs.items() if isinstance(outputs, dict) else ())
            if name not in known
        }
        packing.outputs = {"packed": packing.pack(tensors), "own": own}
        return packing.outputs

    def _apply(self, results: list[Any], packing: Packing, updates: list[_Update]) -> None:
        """Applies what the parts computed, in replica context on the coordinator."""
        unpacked = [packing.unpack(result["packed"]) for result in results]
        rows = [values.pop(0) for values in unpacked]
        # Less than 1 where gradients came too late: the mean is that over the rows that are here.
        share = tf.cast(tf.add_n(rows) / unpacked[0][0], tf.float32)
        for values in unpacked:
            del values[0]
        for update in updates:
            count = len(update.variables)
            columns = list(zip(*(values[:count] for values in unpacked)))
            for values in unpacked:
                del values[:count]
            if update.optimizer is not None:
                gradients = [_total(column, share) for column in columns]
                update.optimizer.apply(gradients, update.variables)
            else:
                variable = update.variables[0]
                variable._value.assign(_merged(variable, columns[0], rows))


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Names the one thing that a part can't do: it must leave the weights as they are.

    Raises:
        UnsupportedError: a layer assigns to its trainable variables.
    """
    try:
        yield
    except AttributeError as error:
        if "'handle'" not in str(error):
            raise
        raise UnsupportedError(
            explain(
                "The workers of a step share the weights, so no layer may assign to its trainable "
                "variables in its forward pass",
                received=str(error),
                fix="Leave out such layers (SpectralNormalization), or use strategy='multi_worker'",
            )
        ) from None


@dataclasses.dataclass
class _Graphs:
    """The graph of a part, and of applying the parts."""

    part: Any
    apply: Any


@dataclasses.dataclass
class _Update:
    """What becomes of the next results: gradients of an optimizer, or a variable's new value."""

    optimizer: Any
    variables: list[Any]


def _state_of(model: Any) -> list[Any]:
    """Returns the variables that a step may change without an optimizer."""
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    of_optimizer = model.optimizer.variables if model.optimizer is not None else ()
    found = {id(v): v for v in (*model.non_trainable_variables, *metrics, *of_optimizer)}
    return list(found.values())


def _total(column: Any, share: Any) -> Any:
    """Returns the gradient of the mean over the rows that arrived, which are `share` of all."""
    first = column[0]
    if first is None:
        return None
    if isinstance(first, tf.IndexedSlices):
        values = tf.concat([one.values for one in column], 0) / tf.cast(share, first.values.dtype)
        indices = tf.concat([one.indices for one in column], 0)
        return tf.IndexedSlices(values, indices, first.dense_shape)
    return tf.add_n(list(column)) / tf.cast(share, first.dtype)


def _merged(variable: Any, column: Any, rows: list[Any]) -> Any:
    """Returns a variable's new value, from what the parts made of it."""
    value = tf.convert_to_tensor(variable._value)
    if variable.aggregation == "sum":
        return value + tf.add_n(list(column))
    if variable.aggregation == "mean" and value.dtype.is_floating:
        total = tf.cast(tf.add_n(rows), value.dtype)
        return tf.add_n([one * tf.cast(n, value.dtype) for one, n in zip(column, rows)]) / total
    return column[0]


def _mean_of(results: list[Any]) -> dict[str, Any]:
    """Returns logs of a step's own over its parts, each of which has its weight already."""
    return {
        name: tf.reduce_mean(tf.stack([tf.cast(r["own"][name], tf.float32) for r in results]))
        for name in results[0]["own"]
    }


def _rows_of(batch: Any, first: int, last: int) -> Any:
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else step_input.slice_rows(leaf, first, last), batch
    )


def _nothing(like: Any) -> Any:
    return tf.nest.map_structure(
        lambda t: tf.zeros([n or 0 for n in t.shape.as_list()], t.dtype), like
    )
