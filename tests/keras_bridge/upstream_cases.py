"""What Keras and tf.distribute do without tfdist; see test_upstream_saving.py.

Nothing here imports tfdist: the point is the behaviour that its repairs stand in for.
"""

from __future__ import annotations

import contextlib
import os
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class MultiWorker(tf.distribute.MultiWorkerMirroredStrategy):
    """Stock, but for the two calls of `reduce` that stop Keras' `fit` (keras issue 20585)."""

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        if isinstance(value, (tuple, list, dict)):
            return tf.nest.map_structure(lambda v: self.experimental_local_results(v)[0], value)
        scalar = self.experimental_local_results(value)[0].shape.rank == 0
        return super().reduce(reduce_op, value, axis=None if scalar else axis)


def multi_worker() -> MultiWorker:
    return MultiWorker()


def mirrored() -> tf.distribute.MirroredStrategy:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    x[::2] += 3.0
    return x, x.sum(axis=1, keepdims=True)


def build(strategy: Any) -> keras.Model:
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        )
        model.compile("adam", keras.losses.MeanSquaredError())
    return model


def fit(model: keras.Model, epochs: int = 1, **kwargs: Any) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(8)
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policy.DATA
    return model.fit(dataset.with_options(options), epochs=epochs, verbose=0, **kwargs)


def together(strategy: Any) -> None:
    """Returns when every worker is here."""
    strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)


def is_last(strategy: Any) -> bool:
    return strategy.cluster_resolver.task_id == 1


# Under two workers


def who_writes(strategy: MultiWorker, folder: str) -> list[str]:
    """Worker 0 saves in every form, then worker 1; returns the forms that worker 1 wrote anew."""
    model = build(strategy)
    fit(model)
    archive = keras.export.ExportArchive()
    archive.track(model)
    spec = [tf.TensorSpec((None, 4), "float32")]
    archive.add_endpoint("serve", lambda x: model(x, training=False), input_signature=spec)
    forms = {
        "m.keras": model.save,
        "m.h5": model.save,
        "m.weights.h5": model.save_weights,
        "export/fingerprint.pb": lambda path: model.export(os.path.dirname(path), verbose=False),
        "archive/fingerprint.pb": lambda path: archive.write_out(
            os.path.dirname(path), verbose=False
        ),
    }
    if not is_last(strategy):
        for name, save in forms.items():
            save(f"{folder}/{name}")
    together(strategy)
    before = {name: os.stat(f"{folder}/{name}").st_mtime_ns for name in forms}
    together(strategy)
    if is_last(strategy):
        for name, save in forms.items():
            save(f"{folder}/{name}")
    together(strategy)
    return [n for n in forms if os.stat(f"{folder}/{n}").st_mtime_ns != before[n]]


def own_statistics(strategy: MultiWorker, folder: str) -> list[float]:
    model = build(strategy)
    fit(model)
    path = f"{folder}/{int(is_last(strategy))}.keras"
    model.save(path)
    return keras.models.load_model(path).layers[0].moving_mean.numpy().tolist()


def log_files(strategy: MultiWorker, folder: str) -> dict[str, Any]:
    log = keras.callbacks.CSVLogger(f"{folder}/log.csv")
    board = keras.callbacks.TensorBoard(f"{folder}/board")
    fit(build(strategy), callbacks=[log, board])
    together(strategy)
    events = [p.name for p in Path(folder, "board", "train").iterdir() if "tfevents" in p.name]
    return {"logged": log.keys is not None, "event files": len(events)}


def own_decisions(strategy: MultiWorker, folder: str) -> float:
    """Each worker's checkpoint follows its own value."""
    rank = float(is_last(strategy))

    class Local(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["local"] = rank

    path = f"{folder}/{int(rank)}.keras"
    check = keras.callbacks.ModelCheckpoint(path, save_best_only=True, monitor="local", mode="min")
    fit(build(strategy), callbacks=[Local(), check])
    return check.best


def own_vote(strategy: MultiWorker) -> list[bool]:
    """Worker 1 asks to stop; returns what each worker is about to do at the end of the epoch."""
    stopping: list[bool] = []

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = is_last(strategy)

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            stopping.append(self.model.stop_training)

    fit(build(strategy), callbacks=[Stop(), Look()])
    return stopping


def asks(strategy: MultiWorker, folder: str) -> str:
    """Saves with overwrite=False over a file that exists; there is no terminal to ask at."""
    path = f"{folder}/{int(is_last(strategy))}.keras"
    model = build(strategy)
    model.save(path)
    try:
        model.save(path, overwrite=False)
    except BaseException as error:
        return type(error).__name__
    return "no error"


# Under two replicas of one process


def replica_statistics(strategy: Any, folder: str) -> dict[str, list[float]]:
    model = build(strategy)
    fit(model)
    own = [
        v.numpy() for v in strategy.experimental_local_results(model.layers[0].moving_mean.value)
    ]
    model.save_weights(f"{folder}/m.weights.h5")
    loaded = build(strategy)
    loaded.load_weights(f"{folder}/m.weights.h5")
    saved = loaded.layers[0].moving_mean.numpy()
    return {"saved": saved.tolist(), "first": own[0].tolist(), "second": own[1].tolist()}


def unbuilt_optimizer(strategy: Any, folder: str) -> dict[str, Any]:
    model = build(strategy)
    fit(model)
    model.save_weights(f"{folder}/m.weights.h5")
    loaded = build(strategy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded.load_weights(f"{folder}/m.weights.h5")
    return {
        "saved": int(model.optimizer.iterations.numpy()),
        "loaded": int(loaded.optimizer.iterations.numpy()),
        "warnings": [str(w.message) for w in caught],
    }


def full_disk(strategy: Any, folder: str) -> dict[str, bool]:
    """Tells whether a file can still be read after a write over it has failed."""
    path = f"{folder}/m.keras"
    model = build(strategy)
    fit(model)
    model.save(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        failed = not succeeds(lambda: model.save(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return {
        "failed": failed,
        "readable": succeeds(lambda: build(strategy).load_weights(path)),
    }


def succeeds(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:
        return False
    return True


def resumed_steps(strategy: Any, folder: str) -> dict[str, int]:
    """Interrupted after step 4 of 6, with a backup after step 3, in the middle of an epoch."""

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations.numpy()) == 4:
                raise RuntimeError("interrupted")

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(folder, save_freq=3)

    with contextlib.suppress(RuntimeError):
        fit(build(strategy), 3, callbacks=[backup(), Fail()])
    model = build(strategy)
    second = backup()
    noted: list[int] = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: noted.append(second._current_epoch)
    )
    fit(model, 3, callbacks=[second, look])
    return {"steps": int(model.optimizer.iterations.numpy()), "noted": noted[0]}
