"""What optimizers, layers, metrics and steps do on replicas: cases for `bridge_cases.call`."""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

import numpy as np
from keras_bridge.bridge_cases import data, on_replicas
from parity.lazy import keras, tf

# ---- optimizers, in a hand-written strategy.run loop


def _optimizer(strategy: Any, make: Any, *values: Any) -> tuple[Any, list[Any]]:
    with strategy.scope():
        variables = [keras.Variable(np.asarray(value, "float32")) for value in values]
        optimizer = make()
        optimizer.build(variables)
    return optimizer, variables


def _apply(strategy: Any, optimizer: Any, variables: list[Any], gradients: Any) -> None:
    """Applies `gradients(replica's number)` once on every replica."""

    def one(index: int) -> Any:
        optimizer.apply(gradients(index), variables)
        return tf.constant(0)

    on_replicas(strategy, one)


def _copies(strategy: Any, variable: Any) -> list[Any]:
    return [copy.numpy().tolist() for copy in strategy.experimental_local_results(variable._value)]


def clipped(strategy: Any, **clip: float) -> list[Any]:
    """The replicas' gradients are [3, 0] and [0, 4]: their sum has the norm 5."""
    optimizer, variables = _optimizer(strategy, lambda: keras.optimizers.SGD(1.0, **clip), [0, 0])
    parts = [[3.0, 0.0], [0.0, 4.0]]
    _apply(strategy, optimizer, variables, lambda index: [tf.constant(parts[index])])
    return _copies(strategy, variables[0])


def overflow(strategy: Any) -> dict[str, Any]:
    """One replica's gradient overflows: all skip the step and lower the scale."""
    make = lambda: keras.optimizers.LossScaleOptimizer(  # noqa: E731
        keras.optimizers.SGD(1.0), initial_scale=8.0
    )
    optimizer, variables = _optimizer(strategy, make, [1.0])
    scales = []
    for bad in (None, 1, 0, None):
        _apply(
            strategy,
            optimizer,
            variables,
            lambda index: [tf.constant([np.inf if index == bad else 1.0])],  # noqa: B023
        )
        scales.append(float(optimizer.dynamic_scale))
    return {
        "scales": scales,
        "weights": _copies(strategy, variables[0]),
        "iterations": int(optimizer.iterations),
    }


def sparse_and_absent(strategy: Any) -> list[Any]:
    """Rows 0 and 1 of a table get gradients on the two replicas; another variable gets none."""
    optimizer, variables = _optimizer(
        strategy, lambda: keras.optimizers.SGD(1.0), np.zeros((3, 1)), [7.0]
    )

    def gradients(index: int) -> list[Any]:
        return [tf.IndexedSlices(tf.ones((1, 1)), tf.constant([index]), tf.constant([3, 1])), None]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _apply(strategy, optimizer, variables, gradients)
    return [_copies(strategy, variable) for variable in variables]


def accumulated(strategy: Any) -> list[float]:
    """Gradients 1 and 2 of the replicas, applied at every second step."""
    optimizer, variables = _optimizer(
        strategy, lambda: keras.optimizers.SGD(1.0, gradient_accumulation_steps=2), [0.0]
    )
    values = []
    for _ in range(4):
        _apply(strategy, optimizer, variables, lambda index: [tf.constant([1.0 + index])])
        values.append(_copies(strategy, variables[0]))
    return values


def averaged_and_overwritten(strategy: Any) -> list[Any]:
    optimizer, variables = _optimizer(
        strategy,
        lambda: keras.optimizers.SGD(
            1.0, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
        ),
        [0.0],
    )
    values = []
    for _ in range(2):
        _apply(strategy, optimizer, variables, lambda index: [tf.constant([1.0])])
        values.append(_copies(strategy, variables[0]))
    return values


def decayed(strategy: Any) -> list[Any]:
    optimizer, variables = _optimizer(
        strategy, lambda: keras.optimizers.SGD(0.5, weight_decay=0.1), [2.0]
    )
    _apply(strategy, optimizer, variables, lambda index: [tf.constant([1.0])])
    return _copies(strategy, variables[0])


def constrained(strategy: Any) -> list[Any]:
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_constraint="non_neg")
        layer.build((None, 1))
        optimizer = keras.optimizers.SGD(100.0)
        optimizer.build([layer.kernel])
    _apply(strategy, optimizer, [layer.kernel], lambda index: [tf.ones((1, 1))])
    return _copies(strategy, layer.kernel)


def numbers(strategy: Any) -> tuple[float, int]:
    optimizer, _ = _optimizer(strategy, lambda: keras.optimizers.SGD(0.25), [0.0])
    optimizer.iterations.assign(3)
    return float(optimizer.learning_rate), int(optimizer.iterations)


# ---- random numbers and BatchNormalization


def masks(strategy: Any, steps: int, seed: int | None = 3) -> list[list[list[float]]]:
    """Dropout's masks: by step and replica."""
    keras.utils.set_random_seed(11)
    with strategy.scope():
        dropouts = [keras.layers.Dropout(0.5, seed=seed) for _ in range(2)]
    found = []
    for _ in range(steps):
        for dropout in dropouts if seed is None else dropouts[:1]:
            found.append(
                on_replicas(strategy, lambda _: dropout(tf.ones((1, 64)), training=True))  # noqa: B023
            )
    return [[part.ravel().tolist() for part in parts] for parts in found]


def one_devices_mask(_: Any) -> list[float]:
    keras.utils.set_random_seed(11)
    dropout = keras.layers.Dropout(0.5, seed=3)
    return dropout(tf.ones((1, 64)), training=True).numpy().ravel().tolist()


def moving_mean(strategy: Any, rows: int, synchronized: bool = False) -> list[float]:
    """BatchNormalization's moving mean after a batch of `rows` rows of ones."""
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.0, synchronized=synchronized)
        model = keras.Sequential([keras.Input((1,)), layer, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.train_on_batch(np.ones((rows, 1)), np.ones((rows, 1)))
    return [value for copy in _copies(strategy, layer.moving_mean) for value in copy]


# ---- metrics and custom steps


def own_step(strategy: Any, rows: int, per_execution: int = 1, eager: bool = False) -> dict:
    """A custom train_step written for one device: its own loss, tracker, and log."""

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")
            self.tracker = keras.metrics.Mean(name="loss")
            self.count = keras.metrics.Sum(name="count", dtype="int64")

        @property
        def metrics(self) -> list[Any]:
            return [self.tracker, self.count]

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            self.tracker.update_state(loss)
            self.count.update_state(tf.ones_like(y, tf.int64))
            return {m.name: m.result() for m in self.metrics} | {"own": loss, "three": 3}

    with strategy.scope():
        model = Model()
        model.compile(
            keras.optimizers.SGD(0.1), steps_per_execution=per_execution, run_eagerly=eager
        )
    x, y = data(rows)
    history = model.fit(x, y, batch_size=8, shuffle=False, epochs=2, verbose=0).history
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    return {name: list(map(float, values)) for name, values in history.items()} | {
        "weights": weights.tolist()
    }


def tuple_of_one(strategy: Any) -> list[list[int]]:
    """A dataset of tuples of one, and a step that takes `data[0]`."""
    shapes = []

    class Model(keras.Model):
        def call(self, x: Any) -> Any:
            return x

        def train_step(self, batch: Any) -> Any:
            shapes.append([len(batch), *batch[0].shape.as_list()])
            return {"loss": tf.reduce_mean(batch[0])}

    with strategy.scope():
        model = Model()
        model.compile()
    source = tf.data.Dataset.from_tensor_slices((data(8)[0],)).batch(8, drop_remainder=True)
    model.fit(source, verbose=0)
    return shapes


def unknown_steps(strategy: Any, batches: int, per_execution: int) -> dict[str, Any]:
    """A dataset that doesn't know its length, and several steps per execution."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=per_execution)
    x, y = data(4 * batches - 1)
    source = tf.data.Dataset.from_tensor_slices((x, y)).batch(4).filter(lambda *_: True)
    history = model.fit(source, epochs=2, verbose=0).history
    return {
        "steps": int(model.optimizer.iterations),
        "loss": history["loss"],
        "rows": model.predict(source, verbose=0).shape[0],
        "evaluate": float(model.evaluate(source, verbose=0)),
    }


def packed_metrics(strategy: Any) -> dict[str, Any]:
    """Metrics of several dtypes and shapes are read with one collective for each dtype."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
        model.compile("sgd", "mse", metrics=[keras.metrics.AUC(num_thresholds=10), "mae"])
    x, y = data(7)
    labels = (y > 0).astype("float32")
    found = model.test_on_batch(x, labels, return_dict=True)
    predicted = tf.constant(model.predict(x, verbose=0))
    auc = keras.metrics.AUC(num_thresholds=10)
    auc.update_state(labels, predicted)
    return {
        "got": [found["auc"], found["mae"]],
        "want": [float(auc.result()), float(np.abs(labels - predicted).mean())],
    }


def one_row_of_an_image(strategy: Any, jit: bool) -> dict[str, Any]:
    """Trains a convolution on one row: the second replica has none."""

    class Counter(keras.layers.Layer):
        def build(self, _: Any) -> None:
            self.seen = self.add_weight(shape=(), trainable=False, initializer="zeros")

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
            return x

    with strategy.scope():
        counter = Counter()
        model = keras.Sequential(
            [
                keras.Input((2, 2, 1)),
                counter,
                keras.layers.Conv2D(1, 2, use_bias=False, kernel_initializer="ones"),
                keras.layers.Flatten(),
            ]
        )
        metric = keras.metrics.MeanMetricWrapper(lambda _, p: p, name="mean")
        model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=[metric], jit_compile=jit)
    x, y = np.arange(4.0).reshape(1, 2, 2, 1), np.ones((1, 1))
    prediction = float(model.predict(x, verbose=0)[0, 0])
    logs = model.train_on_batch(x, y, return_dict=True)
    return {
        "seen": [float(copy) for copy in strategy.experimental_local_results(counter.seen._value)],
        "mean": logs["mean"],
        "prediction": prediction,
        "rows": model.predict(x, verbose=0).shape[0],
        "weights": model.layers[1].get_weights()[0].ravel().tolist(),
        "by_hand": (1 - 0.2 * (6.0 - 1.0) * np.arange(4.0)).tolist(),
    }


def summed_activity(strategy: Any) -> list[str]:
    """What `fit` and `evaluate` say where Keras sums activity regularizers."""
    from tfdist.keras_bridge import activity

    with strategy.scope():
        dense = keras.layers.Dense(1, activity_regularizer="l2")
        model = keras.Sequential([keras.Input((4,)), dense])
        model.compile("sgd", "mse")
    errors = []
    with mock.patch.object(activity, "sums_rows", return_value=True):
        for call in (model.fit, model.evaluate):
            try:
                call(*data(), verbose=0)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
    assert int(model.optimizer.iterations) == 0
    assert len(errors) == 2
    return errors
