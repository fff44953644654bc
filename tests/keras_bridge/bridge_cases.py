"""Cases on replicas for the tests of the bridge, run in processes of their own; see `support.server`."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from parity.lazy import keras, tf

__all__ = ["on_replicas", "start", "start_group", "start_plain"]


def logical_devices(n: int) -> list[str]:
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * n)
    return [f"CPU:{i}" for i in range(n)]


def start_plain() -> list[str]:
    """Sets up two logical devices and nothing of tfdist."""
    os.environ["TF_DETERMINISTIC_OPS"] = "1"
    return logical_devices(2)


def start() -> Any:
    """Sets up tfdist's MirroredStrategy on two devices."""
    devices = logical_devices(2)
    from tfdist.strategies import MirroredStrategy

    return MirroredStrategy(devices)


def start_group() -> Any:
    """Sets up tfdist's MultiWorkerMirroredStrategy from TF_CONFIG."""
    from tfdist.strategies import MultiWorkerMirroredStrategy

    return MultiWorkerMirroredStrategy()


def call(strategy: Any, run: str, **kwargs: Any) -> Any:
    """Runs the case "module:function" as in a new process."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    module, _, function = run.partition(":")
    return getattr(importlib.import_module(module), function)(strategy, **kwargs)


def data(rows: int = 16) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def on_replicas(strategy: Any, function: Callable[[int], Any]) -> list[Any]:
    """Calls `function(replica's number)` on each replica, compiled; returns the local results."""

    def replica() -> Any:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        return function(int(tf.get_static_value(index)))

    results = tf.function(lambda: strategy.run(replica), autograph=False)()
    values = strategy.experimental_local_results(results)
    return [tf.nest.map_structure(lambda leaf: leaf.numpy(), value) for value in values]


# ---- the repairs act on tfdist's models only


def before_and_after(devices: list[str]) -> list[dict[str, bytes]]:
    """Trains stock models before the bridge is installed, and after a tfdist model has trained."""
    stock = tf.distribute.MirroredStrategy(devices)
    from tfdist.keras_bridge import patching

    assert not patching.installed(), "the process must be new"
    before = _stock_results(stock)
    from tfdist.strategies import MirroredStrategy

    ours = MirroredStrategy(devices)
    assert patching.installed()
    with ours.scope():
        model = _model()
        model.compile("adam", "mse")
    model.fit(*data(9), batch_size=8, verbose=0)
    return [before, _stock_results(stock)]


def _stock_results(stock: Any) -> dict[str, bytes]:
    """Returns the bits of what stock Keras computes with everything that the bridge touches."""
    clipped = lambda: keras.optimizers.SGD(0.1, clipnorm=0.1, weight_decay=0.01)  # noqa: E731
    scaled = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())  # noqa: E731
    models = {
        "without a strategy": (None, clipped),
        "under MirroredStrategy": (stock, clipped),
        "under MirroredStrategy, with a loss scale": (stock, scaled),
    }
    x, y = data(15)
    found = {"average loss": tf.nn.compute_average_loss(tf.ones(3), global_batch_size=8).numpy()}
    for name, (strategy, optimizer) in models.items():
        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = _model()
            model.compile(optimizer(), "mse", metrics=["mae"])
        history = model.fit(x, y, batch_size=8, validation_data=(x, y), verbose=0)
        results = [*model.get_weights(), *history.history.values(), model.predict_on_batch(x)]
        found[name] = b"".join(np.asarray(result).tobytes() for result in results)
    return found


def _model() -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.Dense(1, kernel_regularizer="l2"),
        ]
    )
