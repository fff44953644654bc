"""Cases that a persistent group of workers runs together; see `support.server`.

Each is called as `case(strategy, **kwargs)` on every worker and returns what the test compares.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from tfdist.callbacks import MemoryGuard, current_learning_rate


def multi_worker() -> Any:
    from tfdist.strategies import MultiWorkerMirroredStrategy

    return MultiWorkerMirroredStrategy()


def mirrored() -> Any:
    from tfdist.strategies import MirroredStrategy

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    return MirroredStrategy()


def stock() -> None:
    """Sets up a process that uses Keras alone."""


def data(rows: int = 16) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    x[::2] += 3.0  # replicas see different means
    return x, x.sum(axis=1, keepdims=True)


def scope_of(strategy: Any) -> Any:
    return strategy.scope() if strategy is not None else contextlib.nullcontext()


def build(
    strategy: Any, optimizer: Callable[[], Any] = keras.optimizers.Adam, norm: bool = True
) -> keras.Model:
    with scope_of(strategy):
        keras.utils.set_random_seed(3)
        layers = [keras.layers.BatchNormalization(momentum=0.5)] if norm else []
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        # Objects: Keras can't load "mse" back from its legacy format.
        mae = keras.metrics.MeanAbsoluteError(name="mae")
        model.compile(optimizer(), keras.losses.MeanSquaredError(), metrics=[mae])
    return model


def fit(model: keras.Model, epochs: int = 1, **kwargs: Any) -> keras.callbacks.History:
    x, y = data()
    return model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, **kwargs)


def weights(model: keras.Model) -> list[list[float]]:
    return [np.asarray(w).ravel().tolist() for w in model.get_weights()]


def local_statistics(strategy: Any, model: keras.Model) -> list[list[float]]:
    """Returns this worker's own moving means, one list for each of its replicas."""
    value = model.layers[0].moving_mean.value
    return [v.numpy().tolist() for v in strategy.experimental_local_results(value)]


def slots(model: keras.Model) -> list[float]:
    return [float(np.sum(v.numpy())) for v in model.optimizer.variables]


def listing(folder: str) -> list[str]:
    return sorted(os.listdir(folder))


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    kept = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def error_of(call: Callable[[], Any]) -> str:
    """Returns the error that a call raises, as "Kind: text"."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# Saving


def save_everywhere(strategy: Any, folder: str) -> dict[str, Any]:
    model = build(strategy)
    fit(model, verbose=0)
    model.save(f"{folder}/m.keras")
    model.save(f"{folder}/m.h5")
    model.save_weights(f"{folder}/m.weights.h5")
    model.save_weights(f"{folder}/m.weights.json", max_shard_size=1e-7)
    model.export(f"{folder}/exported", verbose=False)
    x, _ = data()
    return {
        "files": listing(folder),
        "weights": weights(model),
        "slots": slots(model),
        "predictions": model.predict(x, verbose=0).ravel().tolist(),
    }


def statistics(strategy: Any) -> dict[str, Any]:
    from tfdist.keras_bridge import saving

    model = build(strategy)
    x, y = data()
    for start in (0, 8):  # not `fit`, which makes them one at the end of each epoch
        model.train_on_batch(x[start : start + 8], y[start : start + 8])
    before = local_statistics(strategy, model)
    averaged = saving.sync_batch_statistics(model)
    return {
        "before": before,
        "after": local_statistics(strategy, model),
        "variables": averaged,
    }


def on_read_state(strategy: Any, folder: str) -> dict[str, Any]:
    """A layer's variable that is summed over all replicas when it is read."""

    class Counter(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.count = keras.Variable(
                0.0, trainable=False, synchronization="on_read", aggregation="sum", name="count"
            )

        def call(self, inputs: Any) -> Any:
            self.count.assign(self.count + 1.0)
            return inputs

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Counter(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    fit(model, verbose=0)
    model.save_weights(f"{folder}/count.weights.h5")
    import h5py

    with h5py.File(f"{folder}/count.weights.h5") as file:
        stored = float(file["layers/counter/vars/0"][()])
    return {"stored": stored, "read": float(model.layers[0].count.numpy())}


def save_from_one(strategy: Any, folder: str, caller: int) -> dict[str, Any]:
    model = build(strategy)
    fit(model, verbose=0)
    error = ""
    if strategy.tfdist.rank == caller:
        with environment(TFDIST_SAVE_TIMEOUT="2"):
            error = error_of(lambda: model.save(f"{folder}/alone.keras"))
    strategy.tfdist.barrier("after the lonely call")
    model.save(f"{folder}/together.keras")  # the next call of all is not a call behind
    return {"error": error, "files": listing(folder)}


def save_different_things(strategy: Any, folder: str) -> str:
    model = build(strategy)
    if strategy.tfdist.is_chief:
        return error_of(lambda: model.save(f"{folder}/m.keras"))
    return error_of(lambda: model.save_weights(f"{folder}/m.weights.h5"))


def save_apart(strategy: Any, folder: str) -> list[str]:
    """Worker 0 saves twice where worker 1 saves once."""
    model = build(strategy)
    errors = []
    with environment(TFDIST_SAVE_TIMEOUT="2"):
        if strategy.tfdist.is_chief:
            errors.append(error_of(lambda: model.save(f"{folder}/best.keras")))
        errors.append(error_of(lambda: model.save(f"{folder}/last.keras")))
    strategy.tfdist.barrier("after the saves")
    return errors


def save_to_own_paths(strategy: Any, folder: str) -> list[str]:
    model = build(strategy)
    model.save(f"{folder}/worker{strategy.tfdist.rank}.keras")
    return listing(folder)


def save_into_missing_folder(strategy: Any, folder: str) -> str:
    return error_of(lambda: build(strategy).save(f"{folder}/missing/m.keras"))


def save_on_full_disk(strategy: Any, folder: str, name: str) -> dict[str, Any]:
    """The chief can write no more than a kilobyte, which looks like a full disk to it."""
    model = build(strategy)
    save = model.save_weights if ".weights." in name else model.save
    save(f"{folder}/{name}")
    size = os.path.getsize(f"{folder}/{name}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if strategy.tfdist.is_chief:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        error = error_of(lambda: save(f"{folder}/{name}"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    untouched = os.path.getsize(f"{folder}/{name}") == size
    return {"error": error, "files": listing(folder), "untouched": untouched}


def keep_existing(strategy: Any, folder: str) -> dict[str, str]:
    model = build(strategy)
    first = error_of(lambda: model.save(f"{folder}/m.keras", overwrite=False))
    second = error_of(lambda: model.save(f"{folder}/m.keras", overwrite=False))
    third = error_of(lambda: keras.saving.save_model(model, f"{folder}/m.keras", overwrite=True))
    return {"first": first, "second": second, "third": third}


def bad_timeout(strategy: Any, folder: str) -> str:
    with environment(TFDIST_SAVE_TIMEOUT="soon"):
        return error_of(lambda: build(strategy).save(f"{folder}/m.keras"))


def load_everything(strategy: Any, folder: str) -> dict[str, Any]:
    """Loads what another strategy saved, in each of its forms."""
    x, _ = data()
    results: dict[str, Any] = {}
    for name in ("m.keras", "m.h5"):
        with scope_of(strategy):
            model = keras.models.load_model(f"{folder}/{name}")
        results[name] = (weights(model), slots(model))
    for name in ("m.weights.h5", "m.weights.json", "m.keras"):
        model = build(strategy)
        if strategy is None:  # stock Keras wants its optimizer built first
            model.optimizer.build(model.trainable_variables)
        model.load_weights(f"{folder}/{name}")
        results[f"weights of {name}"] = (weights(model), slots(model))
    artifact = tf.saved_model.load(f"{folder}/exported")
    served = artifact.serve(x)
    results["served"] = served.numpy().ravel().tolist()
    return results


# Callbacks


def checkpoints(strategy: Any, folder: str) -> dict[str, Any]:
    x, y = data()
    make = keras.callbacks.ModelCheckpoint
    model = build(strategy)
    best = make(f"{folder}/best/best.keras", save_best_only=True, monitor="val_loss")
    fit(
        model,
        3,
        verbose=1,
        validation_data=(x, y),
        callbacks=[
            make(f"{folder}/all/{{epoch:02d}}-{{val_loss:.3f}}.keras", verbose=1),
            best,
            make(f"{folder}/weights/{{epoch}}.weights.h5", save_weights_only=True),
            make(f"{folder}/steps/{{epoch}}-{{batch}}.keras", save_freq=3),
        ],
    )
    return {
        "folders": {name: listing(f"{folder}/{name}") for name in listing(folder)},
        "best": float(best.best),
        "weights": weights(model),
    }


def logs(strategy: Any, folder: str, profile: int = 0) -> dict[str, Any]:
    class Adds(keras.callbacks.CSVLogger):
        """A user's logger that does more than log."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["extra"] = epoch + 0.5
            super().on_epoch_end(epoch, logs)

    model = build(strategy)
    board = keras.callbacks.TensorBoard(
        f"{folder}/board", histogram_freq=1, write_images=True, update_freq=1, profile_batch=profile
    )
    fit(model, 2, verbose=0, callbacks=[Adds(f"{folder}/log.csv"), board])
    more = keras.callbacks.CSVLogger(f"{folder}/log.csv", append=True)
    history = fit(model, 1, verbose=0, callbacks=[more])
    found = [str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file()]
    return {
        "files": sorted(found),
        "lines": Path(folder, "log.csv").read_text().splitlines(),
        "history": sorted(history.history),
    }


def back_up_and_resume(
    strategy: Any,
    folder: str,
    save_freq: Any,
    fail_at: int,
    double: bool = False,
    own: bool = False,
) -> dict[str, Any]:
    """Trains in one go, then interrupted and resumed; every worker fails at the same step."""

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations.numpy()) == fail_at:
                raise RuntimeError("interrupted")

    def backup() -> keras.callbacks.Callback:
        rank = strategy.tfdist.rank if own else 0
        return keras.callbacks.BackupAndRestore(
            f"{folder}/backup" if rank == 0 else f"{folder}/{rank}/backup",
            save_freq=save_freq,
            double_checkpoint=double,
        )

    def train(*callbacks: Any) -> tuple[keras.Model, Any]:
        model = build(strategy)
        return model, fit(model, 4, verbose=0, callbacks=list(callbacks))

    straight, _ = train()
    failed = error_of(lambda: train(backup(), Fail()))
    kept = listing(f"{folder}/backup")
    resumed, history = train(backup())
    return {
        "failed": failed,
        "kept": kept,
        "epochs": history.epoch,
        "steps": int(resumed.optimizer.iterations.numpy()),
        "apart": max(
            float(np.max(np.abs(np.asarray(a) - np.asarray(b))))
            for a, b in zip(
                [*weights(straight), slots(straight)], [*weights(resumed), slots(resumed)]
            )
        ),
        "left": os.path.exists(f"{folder}/backup"),
    }


def resume_from_damaged(strategy: Any, folder: str, both: bool) -> dict[str, Any]:
    """The chief finds the latest backup damaged."""

    def backup(**kwargs: Any) -> keras.callbacks.Callback:
        return keras.callbacks.BackupAndRestore(
            f"{folder}/backup", double_checkpoint=True, **kwargs
        )

    fit(build(strategy), 2, verbose=0, callbacks=[backup(delete_checkpoint=False)])
    strategy.tfdist.barrier("before the damage")
    if strategy.tfdist.is_chief:
        for name in ["latest.weights.h5"] + ["latest.weights.h5.bkp"] * both:
            Path(folder, "backup", name).write_bytes(b"not an HDF5 file")
    strategy.tfdist.barrier("after the damage")
    model = build(strategy)
    started: list[int] = []
    first = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: started.append(epoch))
    error = error_of(lambda: fit(model, 3, verbose=0, callbacks=[backup(), first]))
    return {"error": error, "epochs": started, "steps": int(model.optimizer.iterations.numpy())}


def unshared_backup(strategy: Any, folder: str) -> str:
    """Worker 1 does not see the chief's files."""
    from tfdist.keras_bridge import checkpoints as bridge

    def backup() -> keras.callbacks.Callback:
        return keras.callbacks.BackupAndRestore(f"{folder}/backup", delete_checkpoint=False)

    fit(build(strategy), 2, verbose=0, callbacks=[backup()])
    with (
        mock.patch.object(bridge, "_APPEAR", 0.5),
        mock.patch.object(bridge.file_utils, "exists", return_value=strategy.tfdist.is_chief),
    ):
        return error_of(lambda: fit(build(strategy), 3, verbose=0, callbacks=[backup()]))


def callbacks_on_chief_only(strategy: Any, folder: str) -> str:
    check = [keras.callbacks.ModelCheckpoint(f"{folder}/m.keras")]
    return error_of(
        lambda: fit(build(strategy), verbose=0, callbacks=check if strategy.tfdist.is_chief else [])
    )


def steering(strategy: Any) -> dict[str, Any]:
    """Built-in callbacks that steer from the logs decide alike."""
    x, y = data()
    model = build(strategy)
    rates: list[float] = []
    helped: list[float] = []
    history = fit(
        model,
        8,
        verbose=1,
        validation_data=(x, y + 100.0),
        callbacks=[
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 if epoch < 2 else rate),
            keras.callbacks.ReduceLROnPlateau(patience=1, cooldown=0, min_delta=1e9, verbose=1),
            keras.callbacks.EarlyStopping(
                patience=3, min_delta=1e9, restore_best_weights=True, verbose=1
            ),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: rates.append(float(model.optimizer.learning_rate))
            ),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: helped.append(current_learning_rate(model))
            ),
        ],
    )
    assert helped == rates
    return {"epochs": history.epoch, "rates": rates, "weights": weights(model)}


def memory(strategy: Any, epochs: int, warmup: int, every: int = 10) -> dict[str, Any]:
    """Trains for many tiny epochs (case P90).

    Returns:
        The growth of this process in megabytes per epoch, leaving out what Python has yet to
        collect, and the samples.
    """
    guard = MemoryGuard(limit=1e9)

    def sample(epoch: int, logs: Any) -> None:
        if epoch % every == 0 and epoch >= warmup:
            gc.collect()
            guard.on_epoch_end(epoch)

    fit(
        build(strategy),
        epochs,
        verbose=0,
        callbacks=keras.callbacks.LambdaCallback(on_epoch_end=sample),
    )
    growth = np.polyfit(range(len(guard.samples)), guard.samples, 1)[0] / every
    return {"growth": float(growth), "samples": guard.samples}


def vote(strategy: Any) -> dict[str, Any]:
    """Worker 1 alone wants to stop, from a value that only it sees (case P51)."""

    class Local(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["local"] = float(epoch if strategy.tfdist.rank else -epoch)

    import logging

    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist.keras_bridge.callbacks").addHandler(handler)
    early = keras.callbacks.EarlyStopping(monitor="local", mode="min", patience=0)
    model = build(strategy)
    history = fit(model, 6, verbose=0, callbacks=[Local(), early])
    again = fit(model, 2, verbose=0)
    logging.getLogger("tfdist.keras_bridge.callbacks").removeHandler(handler)
    return {"epochs": history.epoch, "warnings": warnings, "again": again.epoch}


def stop_on_nan(strategy: Any, raise_error: bool) -> dict[str, Any]:
    x, y = data()
    y[9] = np.nan  # in the second batch
    model = build(strategy)
    seen: list[int] = []
    batches = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    nan = keras.callbacks.TerminateOnNaN(raise_error=raise_error)
    error = error_of(
        lambda: model.fit(
            x, y, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=[batches, nan]
        )
    )
    return {"error": error, "batches": seen}


def swap_average(strategy: Any, folder: str) -> dict[str, Any]:
    x, y = data()
    model = build(
        strategy, lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9), norm=False
    )
    history = fit(
        model,
        3,
        verbose=0,
        validation_data=(x, y),
        callbacks=[
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
            keras.callbacks.ModelCheckpoint(f"{folder}/ema.keras"),
        ],
    )
    saved = keras.models.load_model(f"{folder}/ema.keras")
    return {
        "val_loss": history.history["val_loss"],
        "weights": weights(model),
        "saved": weights(saved),
    }


def embeddings(strategy: Any, folder: str) -> list[str]:
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 3), keras.layers.Flatten()]
        )
        model.add(keras.layers.Dense(1))
        model.compile("sgd", "mse")
    x = np.zeros((8, 2), "int32")
    board = keras.callbacks.TensorBoard(folder, embeddings_freq=1)
    model.fit(x, np.zeros((8, 1)), batch_size=8, verbose=0, callbacks=[board])
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def refused(strategy: Any) -> str:
    orbax = type("OrbaxCheckpoint", (keras.callbacks.Callback,), {})()
    return error_of(lambda: fit(build(strategy), verbose=0, callbacks=[orbax]))


def different_starts(strategy: Any) -> str:
    model = build(strategy)
    rank = strategy.tfdist.rank
    start = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: setattr(model, "_initial_epoch", rank)
    )
    return error_of(lambda: fit(model, 3, verbose=0, callbacks=start))
