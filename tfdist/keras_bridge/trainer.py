"""Keras' `fit`, `evaluate` and `predict` for models built under a tfdist strategy."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.utils.python_utils import pythonify_logs

from tfdist.errors import DataError, explain
from tfdist.keras_bridge import (
    activity,
    advice,
    coordinator,
    epochs,
    log_reading,
    probe,
    scope,
    sidecar,
    steps,
    stock_steps,
)
from tfdist.keras_bridge import metrics as step_metrics
from tfdist.keras_bridge.marks import is_tfdist, strategy_of
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS"]

logger = logging.getLogger(__name__)

_CHECKED = "_tfdist_checked_batches"


def _fit(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = strategy_of(self)
    if strategy is None:
        scope.refuse_outside_scope(self, "fit")
        return original(self, *args, **kwargs)
    from tfdist.keras_bridge import callbacks, failures

    scope.check(self, strategy)
    activity.check(self, strategy)
    arguments = _bound(original, self, args, kwargs)
    if strategy.tfdist.sidecar is not None:
        sidecar.run(strategy.tfdist.sidecar, self, arguments)
    if not strategy.tfdist.is_chief:
        arguments["verbose"] = 0
    if isinstance(arguments.get("x"), tf.data.Dataset):
        arguments.setdefault("shuffle", False)  # or Keras warns that its own default is ignored
    if isinstance(arguments.get("validation_data"), tf.data.Dataset):
        epochs.check_steps(arguments["validation_data"], arguments.get("validation_steps"))
    arguments["callbacks"] = callbacks.adapt(arguments.get("callbacks"), strategy)
    advice.advise(self, strategy, arguments.get("batch_size"))
    setattr(self, _CHECKED, False)
    with failures.shared(strategy), log_reading.at_each_step(self):
        return original(self, **arguments)


def _evaluate(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    return _without_training("evaluate", original, self, args, kwargs)


def _predict(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    coordinated = coordinator.coordinates(strategy_of(self))
    with coordinator.looking.predicting(
        coordinator.steps.look_ahead(self) if coordinated else None
    ):
        return _without_training("predict", original, self, args, kwargs)


def _without_training(
    name: str,
    original: Callable[..., Any],
    self: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Runs `evaluate` or `predict` with the same statistics, and one progress bar, on all workers."""
    strategy = strategy_of(self)
    if strategy is None:
        scope.refuse_outside_scope(self, name)
        return original(self, *args, **kwargs)
    from tfdist.keras_bridge import callbacks, failures, saving

    scope.check(self, strategy)
    activity.check(self, strategy)
    arguments = _bound(original, self, args, kwargs)
    if not strategy.tfdist.is_chief:
        arguments["verbose"] = 0
    # As a part of `fit`, it reads the logs when `fit`'s callbacks need them.
    is_part = callbacks.is_adapted(arguments.get("callbacks"))
    reads = contextlib.nullcontext() if is_part else log_reading.at_each_step(self)
    with failures.shared(strategy), reads:
        saving.sync_batch_statistics(self)
        return original(self, **arguments)


def _bound(
    original: Callable[..., Any], self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of a call by name."""
    bound = inspect.signature(original).bind_partial(self, *args, **kwargs)
    arguments = dict(bound.arguments)
    arguments.pop("self", None)
    arguments.update(arguments.pop("kwargs", {}))
    return arguments


def _make_function(
    original: Callable[..., Any], self: Any, step_function: Callable[[Any], Any]
) -> Any:
    strategy = strategy_of(self)
    if strategy is None:
        return original(self, step_function)
    if coordinator.coordinates(strategy):
        return coordinator.step_function(self, step_function)
    return steps.step_function(self, step_function, _check_same_batches)


def _make_predict_function(original: Callable[..., Any], self: Any, force: bool = False) -> Any:
    strategy = strategy_of(self)
    if strategy is None:
        return original(self, force)
    if self.predict_function is None or force:
        make = coordinator.steps if coordinator.coordinates(strategy) else steps
        self.predict_function = make.predict_function(self)
    return self.predict_function


def _check_same_batches(model: Any, checksum: Any) -> None:
    """After the first step of a `fit`: compares the global batch that each worker cut."""
    strategy = model.distribute_strategy
    if getattr(model, _CHECKED, True) or strategy.tfdist.num_workers == 1:
        return
    setattr(model, _CHECKED, True)
    sums = strategy.tfdist.exchange("first batch", str(int(checksum)))
    if len(set(sums)) > 1:
        raise DataError(
            explain(
                "The workers were given different global batches, so rows would be missed and "
                "others used twice: each worker takes its own rows of every global batch",
                received=f"{len(set(sums))} different first batches on {len(sums)} workers",
                fix="Give the dataset's shuffle the same seed on all workers (or pass seed= to "
                "tfdist.create); if each worker has data of its own, set the dataset's "
                "auto_shard_policy to OFF and batch it by its share of the global batch",
            )
        )


def _symbolic_build(
    original: Callable[..., Any], self: Any, iterator: Any = None, data_batch: Any = None
) -> None:
    """Builds the model and its optimizer from the data's structure, without taking a batch."""
    strategy = strategy_of(self)
    if strategy is None:
        original(self, iterator=iterator, data_batch=data_batch)
        return
    if hasattr(iterator, "data_spec"):
        spec = iterator.data_spec
    else:
        spec = _spec_of(data_batch)
    spec = keras.tree.map_structure(_as_symbolic, spec)
    try:
        with probe.found_unproven_losses(self) as unproven, strategy.scope():
            self._symbolic_build(data_batch=spec)
    except Exception as error:
        if not _calls_its_parts(self):
            raise
        # Its own train_step calls its parts, so that it may have no `call`, or one for other data.
        logger.debug("Not built from the structure of the data: %s", error)
        return
    if unproven:
        probe.classify(self, unproven, iterator, data_batch)


def _calls_its_parts(model: Any) -> bool:
    """Returns whether a model has a train_step of its own, and needs no building for it."""
    return not stock_steps.is_stock(model, "train_step") and all(
        layer.built for layer in model._flatten_layers(include_self=False)
    )


class _Spec:
    """What Keras' symbolic build reads of a batch: a shape and a dtype."""

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype


def _as_symbolic(spec: Any) -> Any:
    if spec is None:
        return None
    return _Spec(tuple(spec.shape), spec.dtype)


def _spec_of(data: Any) -> Any:
    def one(leaf: Any) -> Any:
        if leaf is None:
            return None
        tensor = tf.convert_to_tensor(leaf) if not hasattr(leaf, "shape") else leaf
        shape = [None, *tensor.shape[1:]] if len(tensor.shape) else []
        return tf.TensorSpec(shape, tf.as_dtype(tensor.dtype))

    return keras.tree.map_structure(one, data)


def _metrics_or_logs(original: Callable[..., Any], self: Any, logs: Any) -> Any:
    """Reads the metrics of all replicas with one collective, at the end of an epoch."""
    strategy = strategy_of(self)
    if coordinator.coordinates(strategy):
        coordinator.settle(self)
        return coordinator.steps.global_logs(self)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return original(self, logs)
    results = _global_metrics_function(self)()
    if isinstance(logs, dict) and set(logs) == set(results):
        return pythonify_logs(results)  # Keras 3.12 does it here, later versions in the caller
    return logs


def _global_metrics_function(model: Any) -> Callable[[], Any]:
    names = tuple(model.metrics_names)
    cached = getattr(model, "_tfdist_read_metrics", None)
    if cached is None or cached[0] != names or cached[1] is not model._loss_tracker:
        function = functools.partial(step_metrics.global_metrics, model)
        if not model.run_eagerly:
            function = tf.function(function, autograph=False)
        cached = (names, model._loss_tracker, function)
        object.__setattr__(model, "_tfdist_read_metrics", cached)
    return cached[2]


def _epoch_iterator(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    strategy = kwargs.get("distribute_strategy")
    if coordinator.coordinates(strategy):
        return coordinator.feeding.CoordinatorEpochIterator(*args, **kwargs)
    if is_tfdist(strategy):
        return epochs.BridgedEpochIterator(*args, **kwargs)
    return original(*args, **kwargs)


_TRAINER = "keras.src.backend.tensorflow.trainer"

REPAIRS = (
    Repair(
        _TRAINER,
        "TFEpochIterator",
        "an uneven last batch, and workers with unequal numbers of batches, are left to "
        "tf.distribute (keras issue 19246, tensorflow issue 36153)",
        _epoch_iterator,
    ),
    Repair(
        f"{_TRAINER}:TensorFlowTrainer",
        "_maybe_symbolic_build",
        "averages the first batch over the replicas, which fails for unequal shares and under "
        "MultiWorkerMirroredStrategy (keras issues 19246 and 20585)",
        _symbolic_build,
    ),
    Repair(
        f"{_TRAINER}:TensorFlowTrainer",
        "_make_function",
        "reduces scalars along axis 0 under MultiWorkerMirroredStrategy (keras issue 20585); "
        "steps_per_execution and jit_compile crash (keras issues 20344 and 19005)",
        _make_function,
    ),
    Repair(
        f"{_TRAINER}:TensorFlowTrainer",
        "make_predict_function",
        "predict_on_batch returns the rows once per replica (tensorflow issue 39270)",
        _make_predict_function,
    ),
    Repair(
        "keras.src.trainers.trainer:Trainer",
        "_get_metrics_result_or_logs",
        "reads every metric variable with a collective of its own",
        _metrics_or_logs,
    ),
    Repair(
        f"{_TRAINER}:TensorFlowTrainer",
        "fit",
        "every worker prints progress and writes files; a failure is not told to the others",
        _fit,
    ),
    Repair(
        f"{_TRAINER}:TensorFlowTrainer",
        "evaluate",
        "every worker prints progress; BatchNormalization differs between replicas",
        _evaluate,
    ),
    Repair(
        f"{_TRAINER}:TensorFlowTrainer",
        "predict",
        "every worker prints progress; BatchNormalization differs between replicas",
        _predict,
    ),
)
