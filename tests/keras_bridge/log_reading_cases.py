"""What logs are seen, and summed, while two workers train; for the group of `test_callbacks`."""

from __future__ import annotations

from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from tfdist.keras_bridge import log_reading

ROWS, BATCH = 80, 8


def squares(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows, and targets whose squares are the losses: the model below predicts 0."""
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    return x, np.arange(rows, dtype="float32")[:, None] / rows


class Own(keras.Sequential):
    """Returns logs of its own making, or not those of all metrics."""

    returns = "all"

    def train_step(self, data: Any) -> dict:
        logs = super().train_step(data)
        if self.returns == "more":
            return {**logs, "largest": tf.reduce_max(data[1]) * 0.0 + 3.0}
        return {"loss": logs["loss"]} if self.returns == "less" else logs


class Record(keras.callbacks.Callback):
    """Keeps what it sees after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.train: list[float] = []
        self.test: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.train.append(float(logs["loss"]))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.test.append(float(logs["loss"]))


def fit_and_count(
    strategy: Any,
    recorder: str = "none",
    returns: str = "all",
    per_execution: int = 1,
    inner_evaluate: bool = False,
) -> dict[str, Any]:
    """Trains two epochs with a step size of 0, where only the first two steps need reading.

    Args:
        strategy: the strategy.
        recorder: which workers have a callback that reads each batch: "none", "both" or "second".
        returns: what `train_step` returns.
        per_execution: steps per execution.
        inner_evaluate: whether a callback calls `evaluate` in the middle of an epoch.
    """
    with strategy.scope():
        zeros = keras.layers.Dense(1, kernel_initializer="zeros")
        model = Own([keras.Input((4,)), zeros])
        model.returns = returns
        model.compile(
            keras.optimizers.SGD(0.0), "mse", metrics=["mae"], steps_per_execution=per_execution
        )
    x, y = squares()
    rank = strategy.tfdist.rank
    record, callbacks = Record(), []
    if recorder == "both" or (recorder == "second" and rank == 1):
        callbacks.append(record)
    inner = []
    if inner_evaluate:

        class Inner(keras.callbacks.Callback):
            reads_batch_logs = False

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == 5:
                    seen = Record()
                    model.evaluate(x[:24], y[:24], BATCH, verbose=0, callbacks=[seen])
                    inner.append(seen.test)

        callbacks.append(Inner())
    read: list[bool] = []
    original = log_reading.LogReading.end_step

    def counted(self: Any, was_read: bool, mean_seconds: float) -> None:
        read.append(was_read)
        original(self, was_read, mean_seconds)

    with (
        mock.patch.object(log_reading, "_PERIOD", 1e9),
        mock.patch.object(log_reading.LogReading, "end_step", counted),
    ):
        history = model.fit(
            x,
            y,
            BATCH,
            epochs=2,
            shuffle=False,
            verbose=1,
            validation_data=(x[:48], y[:48]),
            callbacks=callbacks,
        ).history
        while_fit = list(read)
        alone = Record()
        model.evaluate(x, y, BATCH, verbose=0, callbacks=[alone])
    return {
        "history": {name: list(map(float, values)) for name, values in history.items()},
        "train": record.train,
        "test": record.test,
        "alone": alone.test,
        "inner": inner,
        "reads": sum(while_fit),
        "executions": len(while_fit),
        "always": log_reading.of(model).always,
    }
