"""Hand-written `strategy.run` loops, and the strategies' own properties; for `bridge_cases.call`."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras_bridge.bridge_cases import data, logical_devices, on_replicas
from parity.lazy import keras, tf


def start_two_by_two() -> Any:
    """Sets up a worker with two devices."""
    logical_devices(2)
    from tfdist.strategies import MultiWorkerMirroredStrategy

    return MultiWorkerMirroredStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())


def step_size(strategy: Any, recipe: str, built: bool = True) -> float:
    """One SGD step on 16 rows: how long it is, in one device's steps."""
    x, y = data()
    mse = keras.losses.MeanSquaredError()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")]
        )
        optimizer: Any = keras.optimizers.SGD(0.1)
        if recipe == "scaled":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        if built:
            optimizer.build(model.trainable_variables)
    losses = {
        "Keras loss": lambda true, got: mse(true, got),
        "scaled": lambda true, got: optimizer.scale_loss(mse(true, got)),
        "compute_average_loss": lambda true, got: tf.nn.compute_average_loss(
            keras.losses.mean_squared_error(true, got), global_batch_size=16
        ),
        "divided again": lambda true, got: mse(true, got) / strategy.num_replicas_in_sync,
        "raw mean": lambda true, got: tf.reduce_mean(tf.square(true - got)),
    }

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = losses[recipe](y, model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    source = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    run = tf.function(lambda batch: strategy.run(step, args=batch))
    for batch in strategy.experimental_distribute_dataset(source):
        run(batch)
    assert int(optimizer.iterations) == 1
    return float((model.get_weights()[0].ravel() / (0.2 * (x * y).mean(0))).mean())


def clipped_sum(strategy: Any) -> list[float]:
    """A hand-written step whose gradient, summed over the replicas, has the norm 10."""
    with strategy.scope():
        variable = keras.Variable(np.zeros(2, "float32"))
        optimizer = keras.optimizers.SGD(1.0, clipnorm=1.0)
        optimizer.build([variable])
    share = np.array([6.0, 8.0], "float32") / strategy.num_replicas_in_sync

    def step(_: int) -> Any:
        optimizer.apply([tf.constant(share)], [variable])
        return tf.constant(0)

    on_replicas(strategy, step)
    return variable.numpy().tolist()


def properties(strategy: Any) -> dict[str, Any]:
    mark = strategy.tfdist
    return {
        "replicas": strategy.num_replicas_in_sync,
        "devices": [device[-5:] for device in strategy.extended.worker_devices],
        "workers": mark.num_workers,
        "rank": mark.rank,
        "chief": mark.is_chief,
        "sync_batch_norm": mark.sync_batch_norm,
        "stock": isinstance(
            strategy, (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
        ),
    }


def refusals(_: Any) -> dict[str, str]:
    """What MirroredStrategy and SingleDeviceStrategy say to wrong devices."""
    from tfdist.errors import ConfigError
    from tfdist.strategies import MirroredStrategy, SingleDeviceStrategy

    calls = {
        "missing": lambda: MirroredStrategy(["CPU:0", "CPU:5"]),
        "twice": lambda: MirroredStrategy(["CPU:0", "/cpu:0"]),
        "nccl": lambda: MirroredStrategy(
            ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.NcclAllReduce()
        ),
        "single": lambda: SingleDeviceStrategy("GPU:0"),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = ""
        except ConfigError as error:
            found[name] = str(error)
    return found


def default_mirrored(_: Any) -> dict[str, Any]:
    """Two strategies without arguments beside each other, and what each trains to."""
    from tfdist.strategies import MirroredStrategy, SingleDeviceStrategy

    found = {}
    for name, kind in (("mirrored", MirroredStrategy), ("single", SingleDeviceStrategy)):
        strategy = kind()
        found[name] = properties(strategy) | {"weights": trained(strategy)}
    return found


def trained(strategy: Any, rows: int = 7) -> list[float]:
    """Weights and predictions after two epochs of two uneven batches."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = data(rows)
    model.fit(x, y, batch_size=5, epochs=2, shuffle=False, verbose=0)
    predicted = model.predict(x, batch_size=3, verbose=0)
    return np.concatenate([*(w.ravel() for w in model.get_weights()), predicted.ravel()]).tolist()


def by_hand(rows: int = 7) -> list[float]:
    """What `trained` returns, computed with numpy."""
    x, y = data(rows)
    weights, bias = np.ones((4, 1)), np.zeros(1)
    for _ in range(2):
        for first in range(0, rows, 5):
            xb, yb = x[first : first + 5], y[first : first + 5]
            error = xb @ weights + bias - yb
            weights = weights - 0.2 * xb.T @ error / len(xb)
            bias = bias - 0.2 * error.mean(0)
    return np.concatenate([weights.ravel(), bias, (x @ weights + bias).ravel()]).tolist()


# ---- the order of the data on workers


def unseeded_shuffle(strategy: Any) -> dict[str, str]:
    """Each worker's dataset is shuffled in an order of its own: refused, and usable afterwards."""
    from tfdist.errors import DataError

    tf.random.set_seed(strategy.tfdist.rank)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    source = tf.data.Dataset.from_tensor_slices(data(32)).shuffle(32).batch(8)
    try:
        model.fit(source, verbose=0)
    except DataError as error:
        refused = str(error)
    else:
        refused = ""
    tf.random.set_seed(5)
    again = tf.data.Dataset.from_tensor_slices(data(32)).shuffle(32, seed=1).batch(8)
    return {"refused": refused, "loss": str(model.fit(again, verbose=0).history["loss"])}


def arrays_shuffled_by_keras(strategy: Any, seeds: list[int | None]) -> list[list[int]]:
    """The rows that this worker sees of arrays that `fit` shuffles: by epoch."""
    from tfdist.keras_bridge.epochs import BridgedEpochIterator
    from tfdist.keras_bridge.input import DATA

    seed = seeds[strategy.tfdist.rank]
    if seed is None:
        from tensorflow.python.eager import context

        context.set_global_seed(None)
    else:
        tf.random.set_seed(seed)
    iterator = BridgedEpochIterator(
        strategy, x=np.arange(17), batch_size=4, shuffle=True, steps_per_execution=1
    )
    epochs = []
    for _ in range(2):
        rows: list[int] = []
        for _, _, source in iterator:
            for part in strategy.experimental_local_results(next(source)[DATA]):
                rows += part.numpy().ravel().tolist()
        epochs.append(rows)
    return epochs
