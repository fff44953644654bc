"""Rows about losses: reductions, weights, masks, regularisers."""

from __future__ import annotations

from typing import Any

import numpy as np
from parity.compare import Cell
from parity.context import Context, arrays, build, fit, labels, mlp
from parity.lazy import keras, tf
from parity.registry import NO_SUM_WITHIN, Differs, row

REGRESSION = (
    "MeanSquaredError",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredLogarithmicError",
    "Huber",
    "LogCosh",
    "CosineSimilarity",
)
BINARY = (
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "Hinge",
    "SquaredHinge",
    "Poisson",
    "KLDivergence",
)
CATEGORICAL = (
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalHinge",
    "CategoricalGeneralizedCrossEntropy",
    "SparseCategoricalCrossentropy",
)
COVERED = (*REGRESSION, *BINARY, *CATEGORICAL, "CTC", "Circle", "Dice", "Tversky")
"""The classes of keras.losses that the rows below use, for the test that none is forgotten."""
REDUCTIONS = ("sum", "sum_over_batch_size", "mean_with_sample_weight", "mean")


def _reduction_row(reduction: str) -> None:
    refused = NO_SUM_WITHIN if reduction == "mean_with_sample_weight" else None

    @row(f"loss reduction {reduction!r}", "losses", odd=reduction != "mean", refused=refused)
    def run(ctx: Context) -> Any:
        loss = lambda: keras.losses.MeanSquaredError(reduction=reduction)  # noqa: E731
        model = mlp(ctx, loss=loss, optimizer=lambda: keras.optimizers.SGD(0.01))
        weights = np.linspace(0.1, 2, 21).astype("float32")
        result = fit(model, *arrays(21), sample_weight=weights, epochs=1)
        return result | {"again": fit(model, *arrays(21), epochs=1)["history"]}


for _reduction in REDUCTIONS:
    _reduction_row(_reduction)


@row("loss reduction 'none'", "losses")
def reduction_none(ctx: Context) -> Any:
    """Stock Keras trains on the sum of the examples' losses and reports their mean over the batches."""
    loss = lambda: keras.losses.MeanSquaredError(reduction="none")  # noqa: E731
    return fit(mlp(ctx, loss=loss, optimizer=lambda: keras.optimizers.SGD(0.01)), *arrays(24))


@row("loss function, per example", "losses", odd=True)
def loss_per_example(ctx: Context) -> Any:
    def loss(y: Any, p: Any) -> Any:
        return tf.reduce_mean(tf.square(y - p), axis=-1)

    return fit(mlp(ctx, loss=loss), *arrays(23))


@row("loss function, batch mean", "losses", odd=True)
def loss_batch_mean(ctx: Context) -> Any:
    def loss(y: Any, p: Any) -> Any:
        return tf.reduce_mean(tf.square(y - p))

    return fit(mlp(ctx, loss=loss, metrics=["mae"]), *arrays(24))


@row("loss function, batch mean, uneven last batch", "losses", odd=True)
def loss_batch_mean_uneven(ctx: Context) -> Any:
    def loss(y: Any, p: Any) -> Any:
        return tf.reduce_mean(tf.square(y - p))

    return fit(mlp(ctx, loss=loss), *arrays(17))


@row("loss function, batch sum", "losses", odd=True)
def loss_batch_sum(ctx: Context) -> Any:
    def loss(y: Any, p: Any) -> Any:
        return tf.reduce_sum(tf.square(y - p))

    return fit(mlp(ctx, loss=loss, optimizer=lambda: keras.optimizers.SGD(0.005)), *arrays(23))


@row("Loss class that divides by the global batch itself", "losses")
def loss_class_divides(ctx: Context) -> Any:
    class Mine(keras.losses.Loss):
        def call(self, y: Any, p: Any) -> Any:
            return tf.reduce_sum(tf.square(y - p), -1) / 8.0

    return fit(mlp(ctx, loss=lambda: Mine()), *arrays(24))


@row("every built-in loss", "losses", timeout=120)
def built_in_losses(ctx: Context) -> Any:
    """One output per loss, trained together; sample weights and an uneven last batch."""
    regression, binary, categorical = (
        {name: getattr(keras.losses, name) for name in names if hasattr(keras.losses, name)}
        for names in (REGRESSION, BINARY, CATEGORICAL)
    )
    x, y = arrays(21)
    _, kind = labels(21)
    targets: dict[str, Any] = {name: np.abs(np.hstack([y, y])) + 0.1 for name in regression}
    targets |= {name: np.hstack([y > 0, y < 0]).astype("float32") for name in binary}
    targets |= {name: np.eye(3, dtype="float32")[kind] for name in categorical}
    targets["SparseCategoricalCrossentropy"] = kind
    if "CategoricalGeneralizedCrossEntropy" in categorical:
        targets["CategoricalGeneralizedCrossEntropy"] = kind

    def make() -> Any:
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, activation="tanh")(inputs)
        outputs = {}
        for names, width, activation in (
            (regression, 2, "softplus"),
            (binary, 2, "sigmoid"),
            (categorical, 3, "softmax"),
        ):
            for name in names:
                outputs[name] = keras.layers.Dense(width, activation, name=name)(hidden)
        return keras.Model(inputs, outputs)

    losses = {name: kind() for name, kind in (regression | binary | categorical).items()}
    model = build(ctx, make, optimizer=lambda: keras.optimizers.SGD(0.001), loss=losses)
    weights = {name: np.linspace(0.5, 1.5, 21).astype("float32") for name in targets}
    source = tf.data.Dataset.from_tensor_slices((x, targets, weights)).batch(8)
    return fit(model, source)


@row("kernel, bias and activity regularizers", "losses", odd=True)
def regularizers(ctx: Context) -> Any:
    def make() -> Any:
        dense = keras.layers.Dense(
            6,
            activation="tanh",
            kernel_regularizer=keras.regularizers.L2(0.1),
            bias_regularizer="l1",
        )
        return keras.Sequential([keras.Input((4,)), dense, keras.layers.Dense(1)])

    model = build(ctx, make, optimizer="sgd", loss="mse", metrics=["mse"])
    return fit(model, *arrays(23), validation_data=arrays(9, seed=1))


@row("activity regularizer", "losses")
def activity(ctx: Context) -> Any:
    def make() -> Any:
        dense = keras.layers.Dense(6, activation="tanh", activity_regularizer="l2")
        return keras.Sequential([keras.Input((4,)), dense, keras.layers.Dense(1)])

    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(24))


def _with_add_loss(scale: Any) -> Any:
    class Penalty(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(scale(x))
            return x

    inputs = keras.Input((4,))
    hidden = Penalty()(keras.layers.Dense(6)(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


@row("add_loss, a batch mean", "losses", odd=False)
def add_loss(ctx: Context) -> Any:
    make = lambda: _with_add_loss(lambda x: 0.1 * tf.reduce_mean(tf.square(x)))  # noqa: E731
    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(24))


@row("add_loss, a batch mean, uneven last batch", "losses")
def add_loss_uneven(ctx: Context) -> Any:
    make = lambda: _with_add_loss(lambda x: 0.1 * tf.reduce_mean(tf.square(x)))  # noqa: E731
    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(23))


@row("add_loss alone, without a compiled loss", "losses")
def add_loss_only(ctx: Context) -> Any:
    make = lambda: _with_add_loss(lambda x: tf.reduce_mean(tf.square(x - 1.0)))  # noqa: E731
    return fit(build(ctx, make, optimizer="sgd"), *arrays(24))


def _sequences(rows: int = 21) -> tuple[np.ndarray, np.ndarray]:
    """Returns word numbers padded with 0, the first half of each batch much shorter than the second."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 12, size=(rows, 6)).astype("int32")
    for i in range(rows):
        x[i, (1 if i % 8 < 4 else 5) :] = 0
    return x, rng.normal(size=(rows, 6, 1)).astype("float32")


def _tagger() -> Any:
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(12, 3, mask_zero=True),
            keras.layers.SimpleRNN(4, return_sequences=True),
            keras.layers.Dense(1),
        ]
    )


@row(
    "masked loss, unequal mask counts on the replicas",
    "losses",
    odd=True,
    refused=NO_SUM_WITHIN,
)
def masked(ctx: Context) -> Any:
    model = build(ctx, _tagger, optimizer="sgd", loss="mse", metrics=["mae"])
    return fit(model, *_sequences())


@row("masked loss, mean_with_sample_weight", "losses", odd=True, refused=NO_SUM_WITHIN)
def masked_weighted(ctx: Context) -> Any:
    loss = lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")  # noqa: E731
    model = build(ctx, _tagger, optimizer="sgd", loss=loss, weighted_metrics=["mae"])
    x, y = _sequences()
    return fit(model, x, y, sample_weight=np.linspace(0.2, 2, 21 * 6).reshape(21, 6))


@row("loss that ignores a class", "losses", refused=NO_SUM_WITHIN)
def ignore_class(ctx: Context) -> Any:
    loss = lambda: keras.losses.SparseCategoricalCrossentropy(  # noqa: E731
        from_logits=True, ignore_class=0
    )
    return fit(mlp(ctx, outputs=3, loss=loss), *labels(24))


@row("CTC loss", "losses")
def ctc(ctx: Context) -> Any:
    def make() -> Any:
        return keras.Sequential([keras.Input((6, 4)), keras.layers.Dense(5)])

    rng = np.random.default_rng(0)
    x = rng.normal(size=(21, 6, 4)).astype("float32")
    y = rng.integers(1, 5, size=(21, 2)).astype("int32")
    loss = lambda: keras.losses.CTC()  # noqa: E731
    return fit(build(ctx, make, optimizer=lambda: keras.optimizers.SGD(0.01), loss=loss), x, y)


def _refused(cell: Cell) -> None:
    for result in cell.results:
        assert result["refused"].startswith("LossError: "), result["refused"]
        assert result["own_steps"] == 0, "refused before any step"


_WHOLE_BATCH = Differs(
    "The loss compares rows of the batch with each other, or is a ratio of sums over them: no "
    "replica can compute its part. `fit` refuses it with a LossError before the first step.",
    check=_refused,
)


def _whole_batch_row(name: str) -> None:
    @row(f"loss {name}, of the whole batch", "losses", differs=_WHOLE_BATCH)
    def run(ctx: Context) -> Any:
        x, kind = labels(24)
        y = kind if name == "Circle" else np.eye(3, dtype="float32")[kind]
        loss = lambda: getattr(keras.losses, name)()  # noqa: E731
        model = mlp(ctx, outputs=3, activation="sigmoid", loss=loss)
        try:
            result = fit(model, x, y)
        except ValueError as error:
            refused = f"{type(error).__name__}: {error}"
            return {"refused": refused, "own_steps": int(model.optimizer.iterations)}
        return result | {"refused": ""}


for _name in ("Dice", "Tversky", "Circle"):
    _whole_batch_row(_name)
