"""Rows about how the training step runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from parity.context import Context, arrays, build, fit, mlp, state
from parity.lazy import keras, tf
from parity.registry import Refused, row


@row("steps_per_execution, dividing the batches", "training", odd=True)
def steps_per_execution(ctx: Context) -> Any:
    model = mlp(ctx, steps_per_execution=3, metrics=["mae"])
    x, y = arrays(48)
    result = fit(model, x, y, validation_data=arrays(24, seed=1))
    return result | {"predicted": model.predict(x, batch_size=8, verbose=0)}


@row("steps_per_execution, not dividing the batches", "training", odd=True)
def steps_per_execution_rest(ctx: Context) -> Any:
    """Five batches in executions of four; the last batch has five rows."""
    model = mlp(ctx, steps_per_execution=4, metrics=["mae"])
    x, y = arrays(37)
    result = fit(model, x, y, validation_data=arrays(13, seed=1))
    return result | {"predicted": model.predict(x, batch_size=8, verbose=0)}


@row("steps_per_execution on an infinite dataset", "training")
def steps_per_execution_infinite(ctx: Context) -> Any:
    source = tf.data.Dataset.from_tensor_slices(arrays(24)).repeat().batch(8)
    return fit(mlp(ctx, steps_per_execution=2), source, steps_per_epoch=4)


@row("jit_compile=True", "training", odd=True)
def jit_compile(ctx: Context) -> Any:
    model = mlp(ctx, jit_compile=True, metrics=["mae"], optimizer=lambda: keras.optimizers.Adam())
    x, y = arrays(24)
    result = fit(model, x, y, validation_data=(x, y))
    return result | {"predicted": model.predict(x, batch_size=8, verbose=0)}


@row("jit_compile=True, uneven last batch", "training")
def jit_compile_uneven(ctx: Context) -> Any:
    return fit(mlp(ctx, jit_compile=True), *arrays(21))


@row(
    "run_eagerly=True",
    "training",
    odd=True,
    refused=Refused(
        "A coordinator hands graphs to its workers, so a model that runs eagerly is refused.",
        "can't run eagerly",
        columns=("parameter_server", "parameter_server_sync"),
    ),
)
def run_eagerly(ctx: Context) -> Any:
    model = mlp(ctx, run_eagerly=True, metrics=["mae"])
    x, y = arrays(20)
    result = fit(model, x, y, validation_data=(x, y))
    return result | {"predicted": model.predict(x, batch_size=8, verbose=0)}


@row("gradient accumulation", "training", odd=True)
def accumulation(ctx: Context) -> Any:
    return fit(
        mlp(ctx, optimizer=lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2)),
        *arrays(32),
        epochs=3,
    )


@row("gradient accumulation, not dividing the steps", "training")
def accumulation_rest(ctx: Context) -> Any:
    """Nine steps in groups of four, with Adam, clipping, and an uneven last batch."""
    optimizer = lambda: keras.optimizers.Adam(  # noqa: E731
        0.01, gradient_accumulation_steps=4, global_clipnorm=0.5
    )
    return fit(mlp(ctx, optimizer=optimizer), *arrays(21), epochs=3)


@row("EMA", "training")
def ema(ctx: Context) -> Any:
    """The averages replace the weights when `fit` ends."""
    optimizer = lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8)  # noqa: E731
    return fit(mlp(ctx, optimizer=optimizer), *arrays(24))


@row("EMA with ema_overwrite_frequency", "training", odd=True)
def ema_overwrite(ctx: Context) -> Any:
    optimizer = lambda: keras.optimizers.Adam(  # noqa: E731
        0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
    )
    return fit(mlp(ctx, optimizer=optimizer), *arrays(40))


class _Steps:
    """Makes a subclass of keras.Model with its own steps; Keras is imported when it is used."""

    @staticmethod
    def model() -> Any:
        class Custom(keras.Model):
            def __init__(self, **kwargs: Any) -> None:
                super().__init__(**kwargs)
                self.seen = keras.metrics.Mean(name="seen")
                self.mae = keras.metrics.MeanAbsoluteError(name="mae")

            @property
            def metrics(self) -> list:
                return [self.seen, self.mae]

            def train_step(self, data: Any) -> dict:
                x, y = data
                with tf.GradientTape() as tape:
                    predicted = self(x, training=True)
                    loss = self.compute_loss(x=x, y=y, y_pred=predicted)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                self.seen.update_state(keras.losses.mean_squared_error(y, predicted))
                self.mae.update_state(y, predicted)
                return {m.name: m.result() for m in self.metrics}

            def test_step(self, data: Any) -> dict:
                x, y = data
                predicted = self(x, training=False)
                self.seen.update_state(keras.losses.mean_squared_error(y, predicted))
                self.mae.update_state(y, predicted)
                return {m.name: m.result() for m in self.metrics}

        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        return Custom(inputs=inputs, outputs=keras.layers.Dense(1)(hidden))


@row("custom train_step and test_step", "training", odd=True)
def custom_train_step(ctx: Context) -> Any:
    model = build(ctx, _Steps.model, optimizer="sgd", loss="mse")
    x, y = arrays(24)
    return fit(model, x, y, validation_data=arrays(16, seed=1))


@row("custom train_step, uneven last batch", "training")
def custom_train_step_uneven(ctx: Context) -> Any:
    model = build(ctx, _Steps.model, optimizer="sgd", loss="mse")
    x, y = arrays(23)
    return fit(model, x, y, validation_data=arrays(17, seed=1))


@row("custom train_step that calls Keras's own", "training")
def custom_train_step_super(ctx: Context) -> Any:
    def make() -> Any:
        class Noisy(keras.Model):
            def train_step(self, data: Any) -> dict:
                x, y = data
                return super().train_step((x * 2.0, y))

        inputs = keras.Input((4,))
        return Noisy(inputs=inputs, outputs=keras.layers.Dense(1)(inputs))

    return fit(build(ctx, make, optimizer="sgd", loss="mse", metrics=["mae"]), *arrays(23))


@row("custom train_step with tf.nn.compute_average_loss", "training")
def average_loss(ctx: Context) -> Any:
    """TensorFlow's own recipe for a loss under a strategy: examples' losses over the global batch."""

    def make() -> Any:
        class Recipe(keras.Model):
            def train_step(self, data: Any) -> dict:
                x, y = data
                with tf.GradientTape() as tape:
                    error = keras.losses.mean_squared_error(y, self(x, training=True))
                    loss = tf.nn.compute_average_loss(error, global_batch_size=8)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                self._loss_tracker.update_state(error)
                return {"loss": self._loss_tracker.result()}

        inputs = keras.Input((4,))
        return Recipe(inputs=inputs, outputs=keras.layers.Dense(1)(inputs))

    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(24))


@row("custom train_step with two optimizers", "training")
def two_optimizers(ctx: Context) -> Any:
    def make() -> Any:
        class Two(keras.Model):
            def compile(self, first: Any, second: Any) -> None:  # type: ignore[override]
                super().compile()
                self.first, self.second = first, second
                self.tracker = keras.metrics.Mean(name="loss")

            @property
            def metrics(self) -> list:
                return [self.tracker]

            def train_step(self, data: Any) -> dict:
                x, y = data
                one, two = self.layers[-2].trainable_variables, self.layers[-1].trainable_variables
                with tf.GradientTape() as tape:
                    error = keras.losses.mean_squared_error(y, self(x, training=True))
                    loss = tf.reduce_mean(error)
                gradients = tape.gradient(loss, one + two)
                self.first.apply_gradients(zip(gradients[: len(one)], one))
                self.second.apply_gradients(zip(gradients[len(one) :], two))
                self.tracker.update_state(error)
                return {"loss": self.tracker.result()}

        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        return Two(inputs=inputs, outputs=keras.layers.Dense(1)(hidden))

    with ctx.scope():
        model = make()
        model.compile(keras.optimizers.SGD(0.05), keras.optimizers.Adam(0.01))
    history = model.fit(*arrays(24), batch_size=8, epochs=2, shuffle=False, verbose=0).history
    optimizers = {
        f"{name}/{i}": np.asarray(keras.ops.convert_to_numpy(v))
        for name in ("first", "second")
        for i, v in enumerate(getattr(model, name).variables)
    }
    return {"history": history} | state(model) | {"optimizer": optimizers}


@row("overridden compute_loss", "training")
def overridden_compute_loss(ctx: Context) -> Any:
    def make() -> Any:
        class Weighted(keras.Model):
            def compute_loss(
                self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: Any = True
            ) -> Any:
                return 0.5 * super().compute_loss(x, y, y_pred, sample_weight, training)

        inputs = keras.Input((4,))
        return Weighted(inputs=inputs, outputs=keras.layers.Dense(1)(inputs))

    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(23))


@row("compute_loss and compute_metrics with terms of their own", "training", odd=True)
def own_terms(ctx: Context) -> Any:
    """Means over the rows that no Keras loss or metric sees; an uneven last batch, validation too."""

    def make() -> Any:
        class Own(keras.Model):
            def __init__(self, **kwargs: Any) -> None:
                super().__init__(**kwargs)
                self.size = keras.metrics.Mean(name="size")

            def compute_loss(
                self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: Any = True
            ) -> Any:
                loss = super().compute_loss(x, y, y_pred, sample_weight, training)
                return loss + 0.1 * tf.reduce_mean(tf.square(y_pred)) + 0.05 * tf.reduce_mean(x)

            def compute_metrics(
                self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
            ) -> Any:
                self.size.update_state(tf.reduce_mean(tf.abs(y_pred)))
                return super().compute_metrics(x, y, y_pred, sample_weight)

        inputs = keras.Input((4,))
        dense = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")
        return Own(inputs=inputs, outputs=keras.layers.Dense(1)(dense(inputs)))

    model = build(ctx, make, optimizer="sgd", loss="mse", metrics=["mae"])
    return fit(model, *arrays(21), validation_data=arrays(11, seed=1))


@row("compute_metrics that returns a value of its own", "training", odd=True)
def own_value(ctx: Context) -> Any:
    """A step's own value is its last batch's in the history: five rows on the replicas."""

    def make() -> Any:
        class Own(keras.Model):
            def compute_metrics(
                self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None
            ) -> Any:
                results = super().compute_metrics(x, y, y_pred, sample_weight)
                return {**results, "largest_mean": tf.reduce_mean(tf.reduce_max(x, -1))}

        inputs = keras.Input((4,))
        return Own(inputs=inputs, outputs=keras.layers.Dense(1)(inputs))

    return fit(build(ctx, make, optimizer="sgd", loss="mse", metrics=["mae"]), *arrays(21))


@row(
    "two models in a train_step of their own, without a call",
    "training",
    odd=True,
    refused=Refused(
        "The workers of a synchronous step compute gradients of the same weights, so a `train_step` "
        "that updates them twice is refused.",
        "a step may update them once only",
    ),
)
def without_a_call(ctx: Context) -> Any:
    """As in a GAN: `fit` has no model of its own to build."""

    def make() -> Any:
        class Pair(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                dense = keras.layers.Dense
                self.maker = keras.Sequential([keras.Input((2,)), dense(4, activation="tanh")])
                self.judge = keras.Sequential([keras.Input((4,)), dense(4, "tanh"), dense(1)])
                self.trackers = [keras.metrics.Mean(name=name) for name in ("made", "judged")]

            @property
            def metrics(self) -> list:
                return self.trackers

            def train_step(self, data: Any) -> dict:
                x, _ = data
                losses = [self._judged, self._made]
                parts = [self.judge, self.maker]
                for loss, part, tracker in zip(losses, parts, reversed(self.trackers)):
                    with tf.GradientTape() as tape:
                        value = loss(x, self.maker(x[:, :2], training=True))
                    gradients = tape.gradient(value, part.trainable_variables)
                    optimizer = self.first if part is self.judge else self.second
                    optimizer.apply(gradients, part.trainable_variables)
                    tracker.update_state(value)
                return {tracker.name: tracker.result() for tracker in self.trackers}

            def _judged(self, x: Any, made: Any) -> Any:
                return tf.reduce_mean(tf.nn.softplus(self.judge(made))) + tf.reduce_mean(
                    tf.nn.softplus(-self.judge(x))
                )

            def _made(self, x: Any, made: Any) -> Any:
                return tf.reduce_mean(tf.nn.softplus(-self.judge(made)))

        return Pair()

    with ctx.scope():
        model = make()
        model.first, model.second = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)
        model.compile()
    return fit(model, *arrays(21))


@row("compiled anew outside the scope, between two fits", "training")
def compiled_anew(ctx: Context) -> Any:
    model = mlp(ctx, metrics=["mae"])
    before = fit(model, *arrays(24))["history"]
    model.compile("adam", "mae", metrics=["mse"])
    return fit(model, *arrays(24)) | {"before": before}


@row("subclassed model, not built", "training", odd=True)
def subclassed(ctx: Context) -> Any:
    def make() -> Any:
        class Plain(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.hidden = keras.layers.Dense(8, activation="tanh")
                self.out = keras.layers.Dense(1)

            def call(self, x: Any, training: bool = False) -> Any:
                return self.out(self.hidden(x))

        return Plain()

    model = build(ctx, make, optimizer="adam", loss="mse", metrics=["mae"])
    x, y = arrays(20)
    result = fit(model, x, y)
    return result | {"predicted": model.predict(x, verbose=0)}


@row("Sequential model, not built, fitted outside the scope", "training")
def unbuilt(ctx: Context) -> Any:
    make = lambda: keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])  # noqa: E731
    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(20))


@row("fit inside the scope", "training")
def inside_scope(ctx: Context) -> Any:
    model = mlp(ctx)
    with ctx.scope():
        return fit(model, *arrays(20))


@row("layers frozen between two fits", "training")
def frozen(ctx: Context) -> Any:
    model = mlp(ctx)
    first = fit(model, *arrays(24), epochs=1)["history"]
    model.layers[0].trainable = False
    with ctx.scope():
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    return fit(model, *arrays(24), epochs=1) | {"first": first}


@row("functional model inside another", "training")
def nested(ctx: Context) -> Any:
    def make() -> Any:
        inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="tanh")])
        a, b = keras.Input((4,)), keras.Input((4,))
        return keras.Model([a, b], keras.layers.Dense(1)(inner(a) * inner(b)))

    x, y = arrays(20)
    model = build(ctx, make, optimizer="sgd", loss="mse")
    source = tf.data.Dataset.from_tensor_slices(((x, x[:, ::-1]), y)).batch(8)
    return fit(model, source)


@row("learning rate set between two fits", "training")
def learning_rate_assigned(ctx: Context) -> Any:
    model = mlp(ctx)
    first = fit(model, *arrays(24), epochs=1)["history"]
    model.optimizer.learning_rate = 0.001
    rate = float(model.optimizer.learning_rate)
    return fit(model, *arrays(24), epochs=1) | {"first": first, "rate": rate}
