"""Rows about Keras's built-in callbacks. All ranks of a cell are given the same paths."""

from __future__ import annotations

import contextlib
import http.server
import io
import math
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
from parity.compare import Cell, differences
from parity.context import Context, arrays, fit, mlp, state
from parity.lazy import keras
from parity.registry import Differs, row

COVERED = [
    "BackupAndRestore",
    "CSVLogger",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "SwapEMAWeights",
    "TensorBoard",
    "TerminateOnNaN",
]
"""The classes of keras.callbacks that have a row, for the test that none is forgotten."""


@row("EarlyStopping", "callbacks", odd=True)
def early_stopping(ctx: Context) -> Any:
    model = mlp(ctx, optimizer=lambda: keras.optimizers.SGD(0.25))
    callback = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    result = fit(
        model, *arrays(), validation_data=arrays(8, seed=1), epochs=12, callbacks=[callback]
    )
    return result | {"stopped": callback.stopped_epoch, "best": callback.best_epoch}


@row("ReduceLROnPlateau", "callbacks", odd=True)
def reduce_on_plateau(ctx: Context) -> Any:
    model = mlp(ctx, optimizer=lambda: keras.optimizers.SGD(0.4))
    callback = keras.callbacks.ReduceLROnPlateau("loss", factor=0.3, patience=1, min_delta=0.1)
    result = fit(model, *arrays(), epochs=6, callbacks=[callback])
    return result | {"rate": float(model.optimizer.learning_rate)}


@row("LearningRateScheduler", "callbacks")
def scheduler(ctx: Context) -> Any:
    model = mlp(ctx, optimizer=lambda: keras.optimizers.Adam(0.1))
    callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    result = fit(model, *arrays(), epochs=3, callbacks=[callback])
    return result | {"rate": float(model.optimizer.learning_rate)}


@row("TerminateOnNaN", "callbacks", odd=True)
def terminate_on_nan(ctx: Context) -> Any:
    """One row of the second batch is NaN, on one replica only: all stop after that batch."""
    x, y = arrays(40)
    x[9] = math.nan
    model = mlp(ctx)
    fit(model, x, y, epochs=3, callbacks=[keras.callbacks.TerminateOnNaN()])
    return {"stopped": bool(model.stop_training), "steps": int(model.optimizer.iterations)}


@row("LambdaCallback and History", "callbacks")
def lambda_callback(ctx: Context) -> Any:
    seen: list[str] = []
    callback = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append("train begin"),
        on_epoch_begin=lambda epoch, logs: seen.append(f"epoch {epoch} begin"),
        on_epoch_end=lambda epoch, logs: seen.append(f"epoch {epoch} end {sorted(logs)}"),
        on_train_batch_begin=lambda batch, logs: seen.append(f"batch {batch} begin"),
        on_train_batch_end=lambda batch, logs: seen.append(f"batch {batch} end {sorted(logs)}"),
        on_train_end=lambda logs: seen.append(f"train end {sorted(logs)}"),
    )
    history = keras.callbacks.History()
    model = mlp(ctx, metrics=["mae"])
    result = fit(model, *arrays(), validation_data=arrays(8, seed=1), callbacks=[callback, history])
    return result | {"seen": seen, "epochs": history.epoch, "own history": history.history}


@row("a callback that stops after a batch", "callbacks")
def stop_after_batch(ctx: Context) -> Any:
    model = mlp(ctx)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                self.model.stop_training = True

    return fit(model, *arrays(40), epochs=3, callbacks=[Stop()])


@row("a callback that reads weights and learning rate", "callbacks")
def reading_callback(ctx: Context) -> Any:
    seen: list[Any] = []

    class Read(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            optimizer = self.model.optimizer
            seen.append([float(optimizer.learning_rate), int(optimizer.iterations)])
            seen.append(self.model.get_weights())

    return fit(mlp(ctx), *arrays(16), epochs=1, callbacks=[Read()]) | {"seen": seen}


@row("SwapEMAWeights", "callbacks", odd=True)
def swap_ema(ctx: Context) -> Any:
    optimizer = lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.6)  # noqa: E731
    callback = keras.callbacks.SwapEMAWeights()
    model = mlp(ctx, optimizer=optimizer)
    return fit(model, *arrays(), validation_data=arrays(8, seed=1), callbacks=[callback])


@row("SwapEMAWeights on epochs, with ModelCheckpoint", "callbacks")
def swap_ema_epochs(ctx: Context) -> Any:
    optimizer = lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.6)  # noqa: E731
    callbacks = [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.ModelCheckpoint(ctx.path("ema.weights.h5"), save_weights_only=True),
    ]
    model = mlp(ctx, optimizer=optimizer)
    result = fit(model, *arrays(), validation_data=arrays(8, seed=1), callbacks=callbacks)
    return result | {"chief_saved": _h5_weights(ctx, "ema.weights.h5")}


def _h5_weights(ctx: Context, name: str) -> Any:
    """Returns the arrays of a weights file the chief wrote; other ranks may be ahead of the write."""
    if not ctx.is_chief:
        return None
    import h5py

    found: dict[str, np.ndarray] = {}
    with h5py.File(ctx.path(name)) as file:
        file.visititems(
            lambda path, item: (
                found.update({path: np.array(item)}) if isinstance(item, h5py.Dataset) else None
            )
        )
    return found


@row("ModelCheckpoint, weights of every epoch", "callbacks", odd=True)
def checkpoint_weights(ctx: Context) -> Any:
    callback = keras.callbacks.ModelCheckpoint(
        ctx.path("w{epoch}.weights.h5"), save_weights_only=True
    )
    model = mlp(ctx, optimizer="adam")
    result = fit(model, *arrays(), callbacks=[callback])
    return result | {"chief_saved": _h5_weights(ctx, "w2.weights.h5")}


@row("ModelCheckpoint, best whole model only", "callbacks")
def checkpoint_best(ctx: Context) -> Any:
    callback = keras.callbacks.ModelCheckpoint(
        ctx.path("best.keras"), monitor="val_loss", save_best_only=True
    )
    model = mlp(ctx, optimizer=lambda: keras.optimizers.SGD(0.25))
    result = fit(
        model, *arrays(), validation_data=arrays(8, seed=1), epochs=5, callbacks=[callback]
    )
    saved = state(keras.models.load_model(ctx.path("best.keras"))) if ctx.is_chief else None
    return result | {"best": float(callback.best), "chief_saved": saved}


@row("ModelCheckpoint, save_freq in batches", "callbacks")
def checkpoint_batches(ctx: Context) -> Any:
    callback = keras.callbacks.ModelCheckpoint(
        ctx.path("b{batch}.weights.h5"), save_weights_only=True, save_freq=2
    )
    model = mlp(ctx)
    result = fit(model, *arrays(40), epochs=1, callbacks=[callback])
    return result | {"chief_saved": _h5_weights(ctx, "b4.weights.h5")}


class _Interrupted(Exception):
    pass


def _seamless(cell: Cell) -> None:
    assert all(result["as if never interrupted"] for result in cell.results)


@row("BackupAndRestore", "callbacks", odd=True, timeout=90, check=_seamless)
def backup_and_restore(ctx: Context) -> Any:
    """Training is interrupted in the third epoch and goes on, in a new model, where it was."""

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise _Interrupted

    def model() -> Any:
        keras.utils.set_random_seed(7)
        return mlp(ctx, optimizer=lambda: keras.optimizers.Adam(0.01), metrics=["mae"])

    folder = ctx.path("backup")
    with contextlib.suppress(_Interrupted):
        backup = keras.callbacks.BackupAndRestore(folder)
        fit(model(), *arrays(), epochs=4, callbacks=[backup, Interrupt()])
    resumed = fit(
        model(), *arrays(), epochs=4, callbacks=[keras.callbacks.BackupAndRestore(folder)]
    )
    straight = fit(model(), *arrays(), epochs=4)
    same = all(
        np.allclose(a, b, rtol=1e-5, atol=1e-6)
        for part in ("weights", "optimizer")
        for a, b in zip(resumed[part].values(), straight[part].values())
    )
    return resumed | {"as if never interrupted": bool(same)}


def _exactly_once(cell: Cell) -> None:
    for result in cell.results:
        for part in ("weights", "optimizer"):
            resumed, straight = (list(r[part].values()) for r in (result, result["own_straight"]))
            found = differences(straight, resumed, 1e-5, 1e-6, part)
            assert not found, found


@row(
    "BackupAndRestore, save_freq in batches",
    "callbacks",
    differs=Differs(
        "Resumed in the middle of an epoch, stock Keras trains its first batches again; here each "
        "batch is trained on once, and the result is that of a run without interruption.",
        check=_exactly_once,
        columns=(
            "single",
            "mirrored",
            "mirrored_3",
            "multi_worker",
            "parameter_server",
            "parameter_server_sync",
        ),
    ),
)
def backup_batches(ctx: Context) -> Any:
    """Stock Keras trains the interrupted epoch's batches again."""

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                raise _Interrupted

    def model() -> Any:
        keras.utils.set_random_seed(7)
        return mlp(ctx, optimizer=lambda: keras.optimizers.Adam(0.01))

    folder = ctx.path("backup")
    with contextlib.suppress(_Interrupted):
        backup = keras.callbacks.BackupAndRestore(folder, save_freq=1)
        fit(model(), *arrays(40), epochs=2, callbacks=[backup, Interrupt()])
    backup = keras.callbacks.BackupAndRestore(folder, save_freq=1)
    resumed = fit(model(), *arrays(40), epochs=2, callbacks=[backup])
    straight = fit(model(), *arrays(40), epochs=2)
    for result in (resumed, straight):
        del result["history"]  # of the resumed epoch's own batches
    return resumed | {"own_straight": straight}


def _cells(line: str) -> list:
    """Returns a line's numbers; Keras writes NA for validation that did not run."""
    return [cell if cell == "NA" else float(cell) for cell in line.split(",")]


@row("CSVLogger", "callbacks")
def csv_logger(ctx: Context) -> Any:
    callback = keras.callbacks.CSVLogger(ctx.path("log.csv"))
    model = mlp(ctx, metrics=["mae"])
    result = fit(model, *arrays(), epochs=3, callbacks=[callback])
    table = None
    if ctx.is_chief:
        lines = Path(ctx.path("log.csv")).read_text().splitlines()
        table = [lines[0].split(","), *[_cells(line) for line in lines[1:]]]
    return result | {"chief_table": table}


@row("CSVLogger, appending", "callbacks")
def csv_logger_append(ctx: Context) -> Any:
    model = mlp(ctx)
    for epochs in (2, 1):
        callback = keras.callbacks.CSVLogger(ctx.path("log.tsv"), separator="\t", append=True)
        fit(model, *arrays(), epochs=epochs, callbacks=[callback])
    lines = Path(ctx.path("log.tsv")).read_text().count("\n") if ctx.is_chief else 0
    return state(model) | {"chief_lines": lines}


def _scalars(folder: Path) -> dict[str, list]:
    """Returns every scalar in the event files below a folder, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for run in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        events = EventAccumulator(str(run))
        events.Reload()
        for tag in events.Tags()["tensors"]:
            values = [(e.step, e.tensor_proto.float_val[:]) for e in events.Tensors(tag)]
            if all(len(v) == 1 for _, v in values):
                name = f"{run.relative_to(folder)}/{tag}"
                found[name] = [[step, float(v[0])] for step, v in values]
    return found


@row("TensorBoard", "callbacks", timeout=90)
def tensorboard(ctx: Context) -> Any:
    folder = Path(ctx.path("logs"))
    callback = keras.callbacks.TensorBoard(
        str(folder), update_freq="epoch", write_graph=False, histogram_freq=1
    )
    model = mlp(ctx, metrics=["mae"])
    result = fit(model, *arrays(), validation_data=arrays(8, seed=1), callbacks=[callback])
    scalars = None
    if ctx.is_chief:
        scalars = {
            name: values
            for name, values in _scalars(folder).items()
            if not re.search("worker|per_second", name)
        }
    return result | {"chief_scalars": scalars}


@row("RemoteMonitor", "callbacks")
def remote_monitor(ctx: Context) -> Any:
    """Posts each epoch's logs; a server in this very process counts them."""
    posts: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_address[1]}"
        callback = keras.callbacks.RemoteMonitor(root=root, path="/", send_as_json=True)
        result = fit(mlp(ctx), *arrays(), callbacks=[callback])
        server.shutdown()
    return result | {"chief_posts": len(posts)}


def _chief_alone_prints(cell: Cell) -> None:
    for rank, result in enumerate(cell.results):
        if rank == 0:
            assert "Epoch 2/2" in result["own_printed"], result["own_printed"]
            assert "val_loss" in result["own_printed"]
        else:
            assert result["own_printed"] == "", f"rank {rank} printed {result['own_printed']!r}"


@row("progress bar (ProgbarLogger), on the chief alone", "callbacks", check=_chief_alone_prints)
def progress_bar(ctx: Context) -> Any:
    model = mlp(ctx, metrics=["mae"])
    printed = io.StringIO()
    x, y = arrays()
    with contextlib.redirect_stdout(printed):
        result = fit(model, x, y, validation_data=(x[:8], y[:8]), verbose=1)
        fit(model, x, y, epochs=1, verbose=2)
        fit(model, x, y, epochs=1, verbose=0, callbacks=[keras.callbacks.ProgbarLogger()])
        model.evaluate(x, y, verbose="auto")
        model.predict(x, verbose=1)
    return result | {"own_printed": printed.getvalue()}
