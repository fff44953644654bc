"""Rows about metrics: every built-in class, weighted ones, and a user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from parity.context import Context, arrays, build, fit, labels, mlp
from parity.lazy import keras, tf
from parity.registry import row

REGRESSION = [
    "MeanSquaredError",
    "RootMeanSquaredError",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredLogarithmicError",
    "LogCoshError",
    "CosineSimilarity",
    "Poisson",
    "R2Score",
]
CORRELATION = ("PearsonCorrelation", "ConcordanceCorrelation")
BINARY = [
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "Precision",
    "Recall",
    "TruePositives",
    "TrueNegatives",
    "FalsePositives",
    "FalseNegatives",
    "Hinge",
    "SquaredHinge",
    "KLDivergence",
]
CATEGORICAL = [
    "CategoricalAccuracy",
    "CategoricalCrossentropy",
    "CategoricalHinge",
    "TopKCategoricalAccuracy",
]
SPARSE = [
    "SparseCategoricalAccuracy",
    "SparseCategoricalCrossentropy",
    "SparseTopKCategoricalAccuracy",
]
OTHERS = [
    "AUC",
    "F1Score",
    "FBetaScore",
    "MeanIoU",
    "IoU",
    "BinaryIoU",
    "OneHotIoU",
    "OneHotMeanIoU",
    "PrecisionAtRecall",
    "RecallAtPrecision",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
    "Accuracy",
]
COVERED = (*REGRESSION, *CORRELATION, *BINARY, *CATEGORICAL, *SPARSE, *OTHERS)
"""The classes of keras.metrics that the rows below use, for the test that none is forgotten."""


def _made(names: Any) -> Any:
    return [getattr(keras.metrics, name)() for name in names if hasattr(keras.metrics, name)]


def _train(model: Any, x: Any, y: Any) -> Any:
    weights = np.linspace(0.2, 2, len(x)).astype("float32")
    result = fit(model, x, y, sample_weight=weights)
    return result | {"evaluated": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)}


@row("regression metrics", "metrics", odd=True, timeout=120)
def regression(ctx: Context) -> Any:
    model = mlp(
        ctx,
        activation="softplus",
        metrics=lambda: _made(REGRESSION),
        weighted_metrics=lambda: _made(("MeanSquaredError", "RootMeanSquaredError", "R2Score")),
    )
    x, y = arrays(21)
    return _train(model, x, np.abs(y) + 0.1)


@row("correlation metrics", "metrics")
def correlation(ctx: Context) -> Any:
    def make_metrics() -> Any:
        found = [getattr(keras.metrics, name, None) for name in CORRELATION]
        return [metric(axis=-1) for metric in found if metric is not None]

    model = mlp(ctx, outputs=5, metrics=lambda: make_metrics())
    x, y = arrays(21)
    return _train(model, x, np.hstack([y, y**2, x[:, :3]]))


@row("precision, recall and their counts", "metrics", odd=True)
def binary(ctx: Context) -> Any:
    model = mlp(
        ctx,
        activation="sigmoid",
        loss="binary_crossentropy",
        metrics=lambda: _made(BINARY),
        weighted_metrics=lambda: _made(("Precision", "TruePositives")),
    )
    x, y = arrays(21)
    return _train(model, x, (y > 0).astype("float32"))


@row("AUC, and precision at recall", "metrics", odd=True)
def auc(ctx: Context) -> Any:
    def make_metrics() -> Any:
        metrics = keras.metrics
        return [
            metrics.AUC(num_thresholds=20),
            metrics.AUC(curve="PR", name="auc_pr"),
            metrics.PrecisionAtRecall(0.5),
            metrics.RecallAtPrecision(0.5),
            metrics.SensitivityAtSpecificity(0.5),
            metrics.SpecificityAtSensitivity(0.5),
            metrics.BinaryIoU(),
        ]

    model = mlp(
        ctx, activation="sigmoid", loss="binary_crossentropy", metrics=lambda: make_metrics()
    )
    x, y = arrays(21)
    return _train(model, x, (y > 0).astype("float32"))


@row("F1, top-k and other categorical metrics", "metrics", odd=True)
def categorical(ctx: Context) -> Any:
    def make_metrics() -> Any:
        metrics = keras.metrics
        return [
            *_made(name for name in CATEGORICAL if name != "TopKCategoricalAccuracy"),
            metrics.TopKCategoricalAccuracy(k=2),
            metrics.F1Score(average="macro"),
            metrics.F1Score(average=None, name="f1_each"),
            metrics.FBetaScore(average="micro", beta=0.5),
            metrics.AUC(multi_label=True, num_labels=3, num_thresholds=20),
            metrics.OneHotIoU(num_classes=3, target_class_ids=[0, 2]),
            metrics.OneHotMeanIoU(num_classes=3),
            metrics.Accuracy(),
        ]

    model = mlp(
        ctx,
        outputs=3,
        activation="softmax",
        loss="categorical_crossentropy",
        metrics=lambda: make_metrics(),
    )
    x, y = labels(21)
    return _train(model, x, np.eye(3, dtype="float32")[y])


@row("sparse top-k, MeanIoU and IoU", "metrics", odd=True)
def sparse(ctx: Context) -> Any:
    def make_metrics() -> Any:
        metrics = keras.metrics
        return [
            *_made(name for name in SPARSE if "TopK" not in name),
            metrics.SparseTopKCategoricalAccuracy(k=2),
            metrics.MeanIoU(num_classes=3, sparse_y_pred=False),
            metrics.IoU(num_classes=3, target_class_ids=[1], sparse_y_pred=False),
        ]

    model = mlp(
        ctx,
        outputs=3,
        activation="softmax",
        loss="sparse_categorical_crossentropy",
        metrics=lambda: make_metrics(),
    )
    return _train(model, *labels(21))


@row("weighted_metrics", "metrics", odd=True)
def weighted(ctx: Context) -> Any:
    model = mlp(ctx, metrics=["mae"], weighted_metrics=["mae", "mse"])
    return _train(model, *arrays(23))


@row("metrics given by name: accuracy", "metrics")
def by_name(ctx: Context) -> Any:
    model = mlp(
        ctx,
        outputs=3,
        activation="softmax",
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy", "acc"],
    )
    return _train(model, *labels(23))


@row("a metric function per example", "metrics", odd=True)
def function(ctx: Context) -> Any:
    def close(y: Any, p: Any) -> Any:
        return tf.cast(tf.abs(y - p) < 0.5, "float32")

    return _train(mlp(ctx, metrics=[close]), *arrays(23))


@row("a metric function of the whole batch", "metrics", odd=True)
def batch_function(ctx: Context) -> Any:
    """Keras averages the batches' numbers."""

    def spread(y: Any, p: Any) -> Any:
        return tf.reduce_mean(tf.square(y - p))

    return fit(mlp(ctx, metrics=[spread]), *arrays(23))


@row("a Metric class of the user's own", "metrics", odd=True)
def own_metric(ctx: Context) -> Any:
    class Positive(keras.metrics.Metric):
        def __init__(self, name: str = "positive", **kwargs: Any) -> None:
            super().__init__(name=name, **kwargs)
            self.found = self.add_variable(shape=(), initializer="zeros", name="found")

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            self.found.assign_add(tf.reduce_sum(tf.cast(p > 0, "float32")))

        def result(self) -> Any:
            return self.found

    return fit(mlp(ctx, metrics=lambda: [Positive()]), *arrays(23))


@row("metrics of a layer's own (Mean, Sum)", "metrics")
def layer_metrics(ctx: Context) -> Any:
    def make() -> Any:
        class Watched(keras.layers.Dense):
            def __init__(self, units: int) -> None:
                super().__init__(units)
                self.size = keras.metrics.Mean(name="size")
                self.total = keras.metrics.Sum(name="total")

            def call(self, x: Any) -> Any:
                out = super().call(x)
                self.size.update_state(tf.abs(out))
                self.total.update_state(tf.square(out))
                return out

        return keras.Sequential([keras.Input((4,)), Watched(3), keras.layers.Dense(1)])

    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(23))
