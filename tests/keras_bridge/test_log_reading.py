"""When logs are summed over the workers; with workers, see `test_callbacks`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import pytest

from tfdist import callbacks as public
from tfdist.keras_bridge import log_reading
from tfdist.keras_bridge.callbacks import _Together
from tfdist.keras_bridge.log_reading import LogReading, reads_each_batch


def read_steps(reading: LogReading, steps: int, seconds: float) -> list[int]:
    """Returns the steps, of `seconds` each, whose logs are read."""
    found, since = [], 0
    for step in range(steps):
        since += 1
        read = reading.begin_step()
        if read:
            found.append(step)
        reading.end_step(read, since * seconds if len(found) > 1 else 0.0)
        since = 0 if read else since
    return found


def test_logs_are_read_at_each_step_unless_fit_says_otherwise() -> None:
    assert read_steps(LogReading(), 5, 0.001) == [0, 1, 2, 3, 4]


def test_logs_for_the_bar_are_read_ten_times_a_second() -> None:
    reading = LogReading()
    reading.always = False
    assert read_steps(reading, 16, 0.025) == [0, 1, 5, 9, 13]
    reading.restart()
    assert read_steps(reading, 4, 0.2) == [0, 1, 2, 3], "a slow step is read each time"


def test_the_distance_of_two_readings_is_limited() -> None:
    reading = LogReading()
    reading.always = False
    assert read_steps(reading, 2500, 1e-6) == [0, 1, 1001, 2001]


def test_the_distance_follows_the_speed() -> None:
    reading = LogReading()
    reading.always = False
    reading.end_step(True, 0.0)
    reading.end_step(True, 0.01)
    assert [reading.begin_step() or reading.end_step(False, 0.0) for _ in range(9)] == [None] * 9
    assert reading.begin_step()
    reading.end_step(True, 0.5)  # ten steps of 0.05 s
    assert not reading.begin_step()
    reading.end_step(False, 0.0)
    assert reading.begin_step()


def test_a_steps_own_logs_are_read_each_time() -> None:
    reading = LogReading()
    reading.always, reading.own_logs = False, True
    assert read_steps(reading, 4, 0.001) == [0, 1, 2, 3]


def test_time_is_counted_from_the_last_reading() -> None:
    reading = LogReading()
    assert reading.seconds() == 0.0
    reading.end_step(True, 0.0)
    assert 0.0 < reading.seconds() < 60.0
    reading.restart()
    assert reading.seconds() == 0.0


def test_a_block_reads_each_step_and_leaves_things_as_they_were() -> None:
    model = SimpleNamespace()
    reading = log_reading.of(model)
    assert log_reading.of(model) is reading
    reading.always = False
    reading.end_step(True, 0.0)
    reading.end_step(True, 0.001)
    with log_reading.at_each_step(model):
        assert reading.begin_step()
    assert not reading.always
    assert reading.begin_step(), "the first step after it is read"
    reading.always = True
    with pytest.raises(KeyboardInterrupt), log_reading.at_each_step(model):
        reading.always = False  # as `fit`'s callbacks do
        raise KeyboardInterrupt
    assert reading.always


def own(*methods: str, **attributes: Any) -> Any:
    """Returns a user's callback with some methods."""
    body = {name: lambda self, batch, logs=None: None for name in methods}
    return type("Own", (keras.callbacks.Callback,), body | attributes)()


class LikeACheckpoint(keras.callbacks.ModelCheckpoint):
    """A user's, that looks at the logs too."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)


READING = {
    "a user's, after a training batch": lambda: own("on_train_batch_end"),
    "a user's, after a batch of validation": lambda: own("on_test_batch_end"),
    "a user's, by the old name": lambda: own("on_batch_end"),
    "LambdaCallback": lambda: keras.callbacks.LambdaCallback(on_train_batch_end=print),
    "TerminateOnNaN": keras.callbacks.TerminateOnNaN,
    "ModelCheckpoint, by batches": lambda: keras.callbacks.ModelCheckpoint("a.keras", save_freq=3),
    "ModelCheckpoint, a user's": lambda: LikeACheckpoint("a.keras"),
    "TensorBoard, by batches": lambda: keras.callbacks.TensorBoard(update_freq=5),
    "TensorBoard, each batch": lambda: keras.callbacks.TensorBoard(update_freq="batch"),
}
NOT_READING = {
    "a user's, at the end of epochs": lambda: own("on_epoch_end", "on_train_begin"),
    "a user's, before a batch": lambda: own("on_train_batch_begin"),
    "a user's, after a batch of predict": lambda: own("on_predict_batch_end"),
    "a user's, that says so": lambda: own("on_train_batch_end", reads_batch_logs=False),
    "LambdaCallback": lambda: keras.callbacks.LambdaCallback(on_epoch_end=print),
    "History": keras.callbacks.History,
    "ProgbarLogger": keras.callbacks.ProgbarLogger,
    "EarlyStopping": keras.callbacks.EarlyStopping,
    "ReduceLROnPlateau": keras.callbacks.ReduceLROnPlateau,
    "LearningRateScheduler": lambda: keras.callbacks.LearningRateScheduler(lambda epoch: 0.1),
    "CSVLogger": lambda: keras.callbacks.CSVLogger("a.csv"),
    "RemoteMonitor": keras.callbacks.RemoteMonitor,
    "SwapEMAWeights": keras.callbacks.SwapEMAWeights,
    "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint("a.keras"),
    "BackupAndRestore": lambda: keras.callbacks.BackupAndRestore("backup"),
    "BackupAndRestore, by batches": lambda: keras.callbacks.BackupAndRestore("b", save_freq=2),
    "TensorBoard": keras.callbacks.TensorBoard,
    "tfdist's Throughput": public.Throughput,
    "tfdist's MemoryGuard": public.MemoryGuard,
    "tfdist's BestCheckpoint": lambda: public.BestCheckpoint("a.keras"),
    "tfdist's StopOnNaN": public.StopOnNaN,
    "fit's own": lambda: _Together(
        SimpleNamespace(tfdist=SimpleNamespace(num_workers=1, is_chief=True))
    ),
}


@pytest.mark.parametrize("name", READING)
def test_callbacks_that_read_each_batch(name: str) -> None:
    assert reads_each_batch(READING[name]())


@pytest.mark.parametrize("name", NOT_READING)
def test_callbacks_that_do_not(name: str) -> None:
    assert not reads_each_batch(NOT_READING[name]())
