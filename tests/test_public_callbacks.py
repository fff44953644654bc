"""tfdist.callbacks: the set that a job gets, and the callbacks in it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from tfdist import callbacks
from tfdist.config import Config


def strategy(rank: int = 0, replicas: int = 2) -> Any:
    return SimpleNamespace(
        tfdist=SimpleNamespace(is_chief=rank == 0, rank=rank), num_replicas_in_sync=replicas
    )


def model(optimizer: Any = "sgd") -> keras.Model:
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    made.compile(optimizer, "mse")
    return made


def fit(made: keras.Model, *added: keras.callbacks.Callback, **kwargs: Any) -> None:
    x = np.ones((16, 2), "float32")
    made.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=list(added), **kwargs)


def names(config: Config, rank: int = 0) -> list[str]:
    return [type(c).__name__ for c in callbacks.default_callbacks(config, strategy(rank))]


def test_the_default_set_follows_the_settings(tmp_path: Path) -> None:
    assert names(Config()) == ["StopOnNaN", "Throughput"]
    everything = Config().replace(
        backup_dir=str(tmp_path / "backup"),
        checkpoint_dir=str(tmp_path / "models"),
        log_dir=str(tmp_path / "logs"),
    )
    expected = [
        "StopOnNaN",
        "BestCheckpoint",
        "ModelCheckpoint",
        "TensorBoard",
        "CSVLogger",
        "BackupAndRestore",
        "Throughput",
    ]
    assert names(everything) == expected
    assert names(everything, rank=1) == expected, "all workers have the same callbacks"


def test_the_default_set_takes_the_settings_values(tmp_path: Path) -> None:
    config = Config(per_replica_batch_size=8).replace(
        backup_dir=str(tmp_path / "backup"), backup_freq=5, checkpoint_dir=str(tmp_path / "models")
    )
    found = {type(c).__name__: c for c in callbacks.default_callbacks(config, strategy())}
    assert found["BackupAndRestore"].save_freq == 5
    # Backups within epochs: each batch is looked at. It raises, so that the run keeps its backup.
    assert found["TerminateOnNaN"].raise_error
    assert found["BestCheckpoint"].filepath == str(tmp_path / "models" / "best.keras")
    assert found["Throughput"].global_batch_size == 16
    quiet = callbacks.default_callbacks(config, strategy(rank=1))[-1]
    assert quiet.verbose == 0


def test_backups_after_epochs_need_no_look_at_each_batch(tmp_path: Path) -> None:
    config = Config().replace(backup_dir=str(tmp_path / "backup"))
    found = {type(c).__name__: c for c in callbacks.default_callbacks(config, strategy())}
    assert found["StopOnNaN"].raise_error


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_no_number_stops_at_the_end_of_its_epoch(loss: float, raises: bool) -> None:
    stop = callbacks.StopOnNaN(raise_error=raises)
    stop.set_model(model())
    for logs in (None, {}, {"loss": 0.5}):
        stop.on_epoch_end(0, logs)
    assert not stop.model.stop_training
    if raises:
        with pytest.raises(RuntimeError, match="mean loss of epoch 2 is"):
            stop.on_epoch_end(1, {"loss": loss})
        return
    stop.on_epoch_end(1, {"loss": loss})
    assert stop.model.stop_training


def test_the_default_set_works_in_a_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Config(global_batch_size=4).replace(
        checkpoint_dir=str(tmp_path / "models"),
        log_dir=str(tmp_path / "logs"),
        backup_dir=str(tmp_path / "backup"),
    )
    fit(model(), *callbacks.default_callbacks(config, strategy()), epochs=2)
    assert sorted(os.listdir(tmp_path / "models")) == ["best.keras", "last.keras"]
    assert len((tmp_path / "logs" / "history.csv").read_text().splitlines()) == 3
    assert not (tmp_path / "backup").exists()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1", "epoch 2"]


@pytest.mark.parametrize(("validation", "monitor"), [(True, "val_loss"), (False, "loss")])
def test_the_best_model_is_chosen_by_what_there_is(
    tmp_path: Path, validation: bool, monitor: str
) -> None:
    best = callbacks.BestCheckpoint(tmp_path / "best.keras")
    data = (np.ones((4, 2)), np.ones((4, 1))) if validation else None
    fit(model(), best, validation_data=data)
    assert best.monitor == monitor
    assert (tmp_path / "best.keras").exists()


def test_throughput_counts_steps_without_the_traced_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    throughput = callbacks.Throughput(global_batch_size=4)
    fit(model(), throughput, epochs=3)
    assert [(entry["epoch"], entry["steps"]) for entry in throughput.history] == [
        (0, 3),
        (1, 4),
        (2, 4),
    ]
    for entry in throughput.history:
        assert entry["steps_per_second"] == pytest.approx(entry["steps"] / entry["seconds"])
        assert entry["examples_per_second"] == pytest.approx(4 * entry["steps_per_second"])
    printed = capsys.readouterr().out
    assert printed.count("examples/s") == 3
    assert printed.startswith("epoch 1: 3 steps in ")


def test_throughput_is_silent_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    throughput = callbacks.Throughput(verbose=0)
    fit(model(), throughput, epochs=2)
    assert capsys.readouterr().out == ""
    assert "examples_per_second" not in throughput.history[0]


@pytest.mark.parametrize(
    ("samples", "growth"),
    [
        ([100, 102, 104, 106, 108, 110], 2.0),
        ([100, 101.9, 104.1, 106, 107.9, 110.1], 2.0),
        ([100, 100, 100, 100, 100, 100], None),
        ([110, 108, 106, 104, 102, 100], None),
        ([100, 100, 100, 150, 150, 150], None),  # one jump
        ([100, 130, 95, 128, 101, 133], None),  # noise
        ([100, 120, 130, 130, 130, 130], None),  # it has levelled off
        ([100, 110, 120], None),  # too few to tell
    ],
)
def test_steady_growth(samples: list[float], growth: float | None) -> None:
    found = callbacks.steady_growth(samples)
    assert found == (None if growth is None else pytest.approx(growth, abs=0.1))


@pytest.mark.parametrize(("step", "warnings"), [(3.0, 1), (0.0, 0)])
def test_the_memory_guard_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: float, warnings: int
) -> None:
    sizes = iter(range(1000))
    fake = SimpleNamespace(
        memory_info=lambda: SimpleNamespace(rss=2**20 * (100 + step * next(sizes)))
    )
    monkeypatch.setattr(callbacks.psutil, "Process", lambda: fake)
    guard = callbacks.MemoryGuard(limit=1.0, warmup=2, window=5)
    with caplog.at_level(logging.WARNING, "tfdist.callbacks"):
        for epoch in range(12):
            guard.on_epoch_end(epoch)
    assert len(caplog.records) == warnings
    if warnings:
        assert "grows steadily: by 3.0 MB per epoch over the last 5 epochs" in caplog.text


def test_the_current_learning_rate() -> None:
    constant = model(keras.optimizers.SGD(0.25))
    assert callbacks.current_learning_rate(constant) == 0.25
    constant.optimizer.learning_rate = 0.5
    assert callbacks.current_learning_rate(constant) == 0.5
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [1e-3, 1e-4])
    scheduled = model(keras.optimizers.SGD(schedule))
    assert callbacks.current_learning_rate(scheduled) == pytest.approx(1e-3)
    fit(scheduled)
    assert callbacks.current_learning_rate(scheduled) == pytest.approx(1e-4)
    wrapped = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.125))
    assert callbacks.current_learning_rate(model(wrapped)) == 0.125
