"""What stock Keras' trainer does wrong, in one process and on workers; see `upstream_table`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from keras_bridge.upstream_table import data, error_of, linear, stands_for
from parity.lazy import keras, tf

_TRAINER = "keras.src.backend.tensorflow.trainer"
_TF_TRAINER = f"{_TRAINER}:TensorFlowTrainer"


@stands_for(
    _TRAINER,
    "TFEpochIterator",
    "a DistributedDataset has no `map`, as class_weight needs it (tensorflow issue 41290)",
)
def class_weight_fails(strategy: Any) -> tuple[bool, Any]:
    x, y = data()
    source = tf.data.Dataset.from_tensor_slices((x, (y > 0).astype("int32"))).batch(8)
    source = strategy.experimental_distribute_dataset(source)
    model = linear(strategy)
    error = error_of(lambda: model.fit(source, class_weight={0: 1.0, 1: 2.0}, verbose=0))
    return "AttributeError" in error, error


@stands_for(
    _TRAINER,
    "TFEpochIterator",
    "workers whose shuffle has no common seed miss rows, and see others twice",
    workers=True,
)
def workers_miss_rows(strategy: Any) -> tuple[bool, Any]:
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    tf.random.set_seed(strategy.cluster_resolver.task_id)
    source = tf.data.Dataset.range(32).shuffle(32).batch(8)
    iterator = TFEpochIterator(distribute_strategy=strategy, x=source)
    seen = np.zeros(32, int)
    for part in iterator._distributed_dataset:
        for value in strategy.experimental_local_results(part):
            seen[value.numpy()] += 1
    step = lambda: strategy.run(  # noqa: E731
        lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(seen))
    )
    (total,) = strategy.experimental_local_results(tf.function(step)())
    return seen.sum() == 16 and int(total.numpy().min()) == 0, total.numpy().tolist()


@stands_for(
    _TF_TRAINER,
    "_maybe_symbolic_build",
    "averages the first batch over the replicas, which fails for unequal shares (keras issue 19246)",
)
def unequal_first_batch(strategy: Any) -> tuple[bool, Any]:
    model = linear(strategy)
    error = error_of(lambda: model.evaluate(*data(1), verbose=0))
    return "AddN" in error, error


@stands_for(
    _TF_TRAINER,
    "_maybe_symbolic_build",
    "averages the first batch over the replicas, which fails on workers (keras issue 20585)",
    workers=True,
)
def first_batch_on_workers(strategy: Any) -> tuple[bool, Any]:
    model = linear(strategy)
    error = error_of(lambda: model.fit(*data(), batch_size=8, verbose=0))
    return "PerReplica" in error, error


@stands_for(
    _TF_TRAINER,
    "_make_function",
    "reduces scalars along axis 0 on workers (keras issue 20585)",
    workers=True,
)
def reduces_scalars_along_an_axis(strategy: Any) -> tuple[bool, Any]:
    model = linear(strategy)
    error = error_of(lambda: model.train_on_batch(*data()))
    return "reduction dimension 0" in error, error


@stands_for(_TF_TRAINER, "_make_function", "steps_per_execution crashes (keras issue 20344)")
def steps_per_execution_crashes(strategy: Any) -> tuple[bool, Any]:
    model = linear(strategy, steps_per_execution=2)
    error = error_of(lambda: model.fit(*data(), batch_size=4, verbose=0))
    return "placeholder" in error.lower(), error


@stands_for(_TF_TRAINER, "_make_function", "jit_compile=True crashes (keras issue 19005)")
def jit_compile_crashes(strategy: Any) -> tuple[bool, Any]:
    model = linear(strategy, jit_compile=True)
    error = error_of(lambda: model.fit(*data(), verbose=0))
    return "Trying to access resource" in error, error


@stands_for(
    _TF_TRAINER,
    "make_predict_function",
    "predict_on_batch returns the rows once per replica (tensorflow issue 39270)",
)
def predict_on_batch_repeats(strategy: Any) -> tuple[bool, Any]:
    rows = linear(strategy).predict_on_batch(data()[0]).shape[0]
    return rows == 32, rows


@stands_for(
    "keras.src.trainers.trainer:Trainer",
    "_get_metrics_result_or_logs",
    "reads every metric variable with a collective of its own",
    workers=True,
)
def a_collective_per_variable(strategy: Any) -> tuple[bool, Any]:
    model = linear(strategy, metrics=["mae", "mse"])
    with strategy.scope():
        model._symbolic_build(data_batch=data())
    kind, calls = type(strategy.extended), 0
    original = kind._reduce_to

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(self, *args, **kwargs)

    with mock.patch.object(kind, "_reduce_to", counted):
        model._get_metrics_result_or_logs(dict.fromkeys(("loss", "mae", "mse"), 0.0))
    return calls >= 6, calls  # a total and a count of each of the three


@stands_for(
    "keras.src.trainers.trainer:Trainer",
    "compile",
    "compiling anew between two fits, outside the scope, fails in the second",
)
def compiled_outside_the_scope(strategy: Any) -> tuple[bool, Any]:
    model = linear(strategy)
    model.fit(*data(), verbose=0)
    model.compile("adam", "mse")
    error = error_of(lambda: model.fit(*data(), verbose=0))
    return "Mixing different tf.distribute.Strategy" in error, error


@contextlib.contextmanager
def trains_on_workers(strategy: Any) -> Iterator[None]:
    """Answers the two reductions that stock Keras fails at, so that one sees what comes after."""
    original = strategy.reduce

    def reduce(reduce_op: Any, value: Any, axis: Any) -> Any:
        if isinstance(value, (tuple, dict)):
            first = lambda leaf: strategy.experimental_local_results(leaf)[0]  # noqa: E731
            return keras.tree.map_structure(first, value)
        return original(reduce_op, value, axis=None)

    with mock.patch.object(strategy, "reduce", reduce):
        yield


def prints_on_the_second(strategy: Any, call: Callable[[Any], Any]) -> tuple[bool, Any]:
    """Whether worker 1 prints progress as worker 0 does."""
    printed = io.StringIO()
    with trains_on_workers(strategy), contextlib.redirect_stdout(printed):
        call(linear(strategy))
    chief = strategy.cluster_resolver.task_id == 0
    return chief or bool(printed.getvalue()), printed.getvalue()


@stands_for(_TF_TRAINER, "fit", "every worker prints progress", workers=True)
def fit_prints_everywhere(strategy: Any) -> tuple[bool, Any]:
    return prints_on_the_second(
        strategy, lambda model: model.fit(*data(), batch_size=8, verbose=2, shuffle=False)
    )


@stands_for(_TF_TRAINER, "evaluate", "every worker prints progress", workers=True)
def evaluate_prints_everywhere(strategy: Any) -> tuple[bool, Any]:
    return prints_on_the_second(
        strategy, lambda model: model.evaluate(*data(), batch_size=8, verbose=2)
    )


@stands_for(_TF_TRAINER, "predict", "every worker prints progress", workers=True)
def predict_prints_everywhere(strategy: Any) -> tuple[bool, Any]:
    return prints_on_the_second(
        strategy, lambda model: model.predict(data()[0], batch_size=8, verbose=2)
    )


@stands_for(
    _TF_TRAINER,
    "evaluate",
    "workers evaluate with moving statistics of their own (tensorflow issue 18222)",
    workers=True,
)
def statistics_differ(strategy: Any) -> tuple[bool, Any]:
    x, y = data()
    x += np.arange(16, dtype="float32")[:, None]
    with trains_on_workers(strategy):
        model = linear(strategy, lambda: keras.layers.BatchNormalization())
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        model.evaluate(x, y, batch_size=8, verbose=0)
    mean = model.layers[0].moving_mean.numpy()
    step = lambda: strategy.run(  # noqa: E731
        lambda: tf.distribute.get_replica_context().all_reduce("MEAN", tf.constant(mean))
    )
    (average,) = strategy.experimental_local_results(tf.function(step)())
    return not np.allclose(mean, average.numpy(), rtol=1e-3), mean
