"""What stock Keras does wrong in losses; see `upstream_table`."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras_bridge.upstream_table import data, linear, on_replicas, shares, stands_for
from parity.lazy import keras, tf

_LOSS = "keras.src.losses.loss"


class ScalarMean:
    """Makes a Keras Loss that returns the mean of the batch as one number."""

    def __new__(cls) -> Any:
        class Mine(keras.losses.Loss):
            def call(self, y_true: Any, y_pred: Any) -> Any:
                return tf.reduce_mean(tf.square(y_true - y_pred))

        return Mine()


@stands_for(
    f"{_LOSS}:Loss",
    "__call__",
    "a Loss that returns one number for the batch counts N times (tensorflow issue 35093)",
)
def scalar_loss_object(strategy: Any) -> tuple[bool, Any]:
    loss = ScalarMean()
    parts = on_replicas(strategy, lambda _: loss(tf.zeros((4, 1)), tf.ones((4, 1))))
    return np.isclose(sum(parts), 2.0), parts


@stands_for(
    "keras.src.trainers.compile_utils:CompileMetrics",
    "update_state",
    "metrics given as `metrics` count rows of weight 0",
)
def metrics_count_rows_without_weight(strategy: Any) -> tuple[bool, Any]:
    metrics = keras.src.trainers.compile_utils.CompileMetrics(["mae"], None)
    metrics.update_state(tf.zeros((2, 1)), tf.constant([[1.0], [9.0]]), tf.constant([1.0, 0.0]))
    seen = float(metrics.result()["mae"])
    return np.isclose(seen, 5.0), seen


@stands_for(
    "keras.src.trainers.compile_utils:CompileLoss",
    "__call__",
    "the losses of the outputs don't add up to the total when a batch is uneven",
)
def output_losses(strategy: Any) -> tuple[bool, Any]:
    x, y = data(11)
    y[8:] += 10.0  # the last three rows, a batch of their own
    with strategy.scope():
        inputs = keras.Input((4,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.0), {"a": "mse", "b": "mse"})
    source = tf.data.Dataset.from_tensor_slices((x, {"a": y, "b": y})).batch(8)
    result = model.evaluate(source, verbose=0, return_dict=True)
    return abs(result["a_loss"] + result["b_loss"] - result["loss"]) > 0.01, result


@stands_for(
    _LOSS,
    "reduce_values",
    "the mean of the replicas' means is taken, whatever their rows",
)
def mean_of_means(strategy: Any) -> tuple[bool, Any]:
    values = np.arange(7, dtype="float32")[:, None]
    loss = keras.losses.MeanAbsoluteError()
    parts = shares(strategy, values, 4, lambda rows: loss(tf.zeros_like(rows), rows))
    return np.isclose(sum(parts), (1.5 + 5.0) / 2) and sum(parts) != 3.0, parts


@stands_for(
    _LOSS,
    "reduce_values",
    "a loss function that returns the batch mean trains with N times the learning rate "
    "(tensorflow issue 35093)",
)
def scalar_loss_function(strategy: Any) -> tuple[bool, Any]:
    def mean(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(y_true - y_pred))

    x, y = data()
    changes = []
    for loss in (mean, "mse"):
        model = linear(strategy, loss=[loss])
        model.set_weights([np.zeros((4, 1)), np.zeros(1)])
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        changes.append(model.get_weights()[0].ravel())
    return np.allclose(changes[0], 2 * changes[1], rtol=1e-3), changes[0] / changes[1]


@stands_for(
    _LOSS,
    "apply_mask",
    "a masked loss is normalised by each replica's own number of valid entries",
)
def masked_loss(strategy: Any) -> tuple[bool, Any]:
    from keras.src import backend

    valid = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)
    values = np.where(valid, 1.0, 9.0).astype("float32")
    values[2, 0] = 6.0
    loss = keras.losses.MeanAbsoluteError()

    def one(rows: Any) -> Any:
        prediction = rows[..., None]
        backend.set_keras_mask(prediction, rows < 9.0)
        return loss(tf.zeros_like(rows)[..., None], prediction)

    parts = shares(strategy, values, 2, one)
    true_mean = (4 * 1.0 + 6.0) / 5
    return np.isclose(sum(parts), (1.0 + 6.0) / 2) and sum(parts) != true_mean, parts


@stands_for(
    _LOSS,
    "scale_loss_for_distribution",
    "a loss added by a layer counts 1/N on each replica, whatever its rows",
)
def added_loss(strategy: Any) -> tuple[bool, Any]:
    from keras.src.losses.loss import scale_loss_for_distribution

    values = np.arange(7, dtype="float32")
    parts = shares(
        strategy, values, 4, lambda rows: scale_loss_for_distribution(tf.reduce_mean(rows))
    )
    return np.isclose(sum(parts), (1.5 + 5.0) / 2), parts


@stands_for(
    _LOSS,
    "unscale_loss_for_distribution",
    "takes every replica's share of the batch for 1/N (goes with scale_loss_for_distribution)",
)
def unscaled_loss(strategy: Any) -> tuple[bool, Any]:
    from keras.src.losses.loss import unscale_loss_for_distribution

    parts = shares(
        strategy, np.ones(7, "float32"), 4, lambda rows: unscale_loss_for_distribution(rows[0])
    )
    return parts == [2.0, 2.0], parts


@stands_for(
    "tensorflow:nn",
    "compute_average_loss",
    "prepares for a sum over the replicas, where the bridge's steps take the mean (no fault)",
)
def average_loss(strategy: Any) -> tuple[bool, Any]:
    given = on_replicas(
        strategy, lambda _: tf.nn.compute_average_loss(tf.ones(4), global_batch_size=8)
    )
    own = on_replicas(strategy, lambda _: tf.nn.compute_average_loss(tf.ones(4)))
    return given == own == [0.5, 0.5], (given, own)


@stands_for(
    "tensorflow:nn",
    "scale_regularization_loss",
    "prepares for a sum over the replicas, where the bridge's steps take the mean (no fault)",
)
def regularization_loss(strategy: Any) -> tuple[bool, Any]:
    parts = on_replicas(strategy, lambda _: tf.nn.scale_regularization_loss(tf.constant(3.0)))
    return parts == [1.5, 1.5], parts
