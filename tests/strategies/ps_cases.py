"""Cases that the chief of a cluster of two workers and two ps runs; see test_parameter_server.py."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from support.ps_cluster import PsCluster

from tfdist.strategies import ParameterServerStrategy


class Lab:
    """The cluster and its chief's strategy."""

    def __init__(self, *options: str) -> None:
        self.cluster = PsCluster(workers=2, ps=2)  # ends with this process
        os.environ["TF_CONFIG"] = self.cluster.tf_config()
        self.strategy = ParameterServerStrategy(**{name: _VALUES[name] for name in options})


_VALUES: dict[str, Any] = {"synchronous": True, "backup_workers": 1, "device_filters": False}


def start(*options: str) -> Lab:
    """Sets up the cluster."""
    keras.utils.set_random_seed(3)
    return Lab(*options)


def _model(lab: Lab, **compile_arguments: Any) -> Any:
    with lab.strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
        )
        arguments: dict[str, Any] = {"loss": "mse", "metrics": ["mae"]}
        model.compile(keras.optimizers.SGD(0.01), **{**arguments, **compile_arguments})
    return model


def _data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def counts(lab: Lab, execution: int) -> dict[str, Any]:
    """Every row is counted once an epoch, however the workers' updates fall together."""

    class Rows(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="rows")
            self.total = self.add_variable((), keras.initializers.Zeros(), name="total")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.total.assign(self.total + keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

        def result(self) -> Any:
            return keras.ops.convert_to_tensor(self.total)

    x, y = _data(1003)
    with lab.strategy.scope():
        metric = Rows()
    model = _model(lab, metrics=[metric, "mae"], steps_per_execution=execution)
    history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, validation_data=(x[:99], y[:99]))
    predicted = model.predict(x, batch_size=10, verbose=0)
    return {
        "rows": history.history["rows"],
        "val_rows": history.history["val_rows"],
        "loss": history.history["loss"],
        "iterations": int(model.optimizer.iterations.numpy()),
        "predicted": predicted,
        "alone": np.asarray(_here(model)(x)),
        "evaluated": model.evaluate(x, y, verbose=0, return_dict=True)["mae"],
        "mae": float(np.abs(predicted - y).mean()),
    }


def _here(model: Any) -> Any:
    """Returns a copy of the model in this process."""
    copy = keras.Sequential.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    return copy


def own_parts(lab: Lab) -> dict[str, Any]:
    """What the workers read with a dataset function, and with an endless dataset: parts of their own."""
    seen: list[tuple[int, int, int]] = []

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        seen.append(
            (context.input_pipeline_id, context.num_input_pipelines, context.num_replicas_in_sync)
        )
        numbers = tf.data.Dataset.range(1000)
        numbers = numbers.shard(context.num_input_pipelines, context.input_pipeline_id)
        return numbers.map(_row).repeat().batch(context.get_per_replica_batch_size(8))

    model = _model(lab)
    history = model.fit(make, steps_per_epoch=50, epochs=2, verbose=0)
    endless = tf.data.Dataset.range(64).map(_row).batch(8).repeat()
    more = model.fit(endless, steps_per_epoch=40, epochs=1, verbose=0)
    return {
        "seen": sorted(set(seen)),
        "losses": history.history["loss"] + more.history["loss"],
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def _row(number: Any) -> tuple[Any, Any]:
    value = tf.cast(number, tf.float32) / 1000
    return tf.stack([value, 1 - value, value, value]), tf.reshape(2 * value, [1])


def generator(lab: Lab) -> dict[str, Any]:
    """A Python generator lives on the chief (tensorflow issue 48957)."""

    def rows() -> Any:
        for number in range(40):
            yield np.full((4,), number / 40, "float32"), np.full((1,), number / 40, "float32")

    signature = (tf.TensorSpec((4,)), tf.TensorSpec((1,)))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(8)
    model = _model(lab)
    model.fit(dataset, epochs=2, verbose=0)
    return {"iterations": int(model.optimizer.iterations.numpy())}


def placement(lab: Lab) -> dict[str, Any]:
    """Large variables are spread over the ps by their bytes, and an optimizer's slots lie beside them."""
    held = lab.strategy.tfdist.placement
    before = list(held.bytes)
    with lab.strategy.scope():
        variables = [
            keras.Variable(np.zeros(1000 if index % 2 == 0 else 1, "float32"))
            for index in range(10)
        ]
        adam = keras.optimizers.Adam()
        adam.build(variables)
    moments = [v for v in adam.variables if "momentum" in v.path]
    return {
        "bytes": [after - first for after, first in zip(held.bytes, before)],
        "beside": all(
            moment.value.device == variable.value.device
            for variable, moment in zip(variables, moments)
        ),
        "said": held.describe(),
    }


def errors(lab: Lab, folder: str) -> dict[str, str]:
    """What users get wrong: one clear error each, and the cluster goes on working."""
    x, y = _data(64)
    model = _model(lab)
    found = {}

    def record(name: str, call: Any) -> None:
        try:
            call()
            found[name] = "no error"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"

    record("eager", lambda: _model(lab, run_eagerly=True).fit(x, y, verbose=0))
    record("no steps", lambda: model.fit(lambda context: None, verbose=0))
    endless = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
    record("endless", lambda: model.fit(endless, verbose=0))
    record("shape", lambda: model.fit(x[:, :2], y, verbose=0))
    record("labels", lambda: _classes(lab).fit(x, np.full(64, 9), verbose=0))
    record("partitioner", lambda: ParameterServerStrategy(variable_partitioner=lambda **_: None))
    model.fit(x, y, verbose=0)
    found["afterwards"] = "fine"
    return found


def _classes(lab: Lab) -> Any:
    with lab.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def backups(lab: Lab) -> dict[str, Any]:
    """A synchronous step that does not wait for the slowest of two workers."""
    x, y = _data(400)
    model = _model(lab)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("tfdist.keras_bridge.coordinator")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    history = model.fit(x, y, batch_size=8, epochs=4, verbose=0)
    log.removeHandler(handler)
    return {
        "lines": lines,
        "dropped": lab.strategy.dropped_gradients,
        "iterations": int(model.optimizer.iterations.numpy()),
        "loss": history.history["loss"],
    }


def callbacks(lab: Lab, folder: str) -> dict[str, Any]:
    """Schedules, loss scaling and the callbacks that users have."""
    x, y = _data(256)
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        with lab.strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype="float32")])
            rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
            model.compile(keras.optimizers.SGD(rate), "mse")
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1)
    path = Path(folder)
    history = model.fit(
        x,
        y,
        epochs=6,
        batch_size=16,
        verbose=0,
        callbacks=[
            stop,
            keras.callbacks.ModelCheckpoint(path / "last.keras"),
            keras.callbacks.TensorBoard(path / "logs"),
            keras.callbacks.CSVLogger(path / "history.csv"),
        ],
    )
    loaded = keras.models.load_model(path / "last.keras")
    return {
        "epochs": len(history.history["loss"]),
        "optimizer": type(model.optimizer).__name__,
        "same": bool(
            np.allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-3)
        ),
        "files": sorted(one.name for one in path.iterdir()),
    }
