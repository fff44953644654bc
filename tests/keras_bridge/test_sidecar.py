"""An evaluator beside a job: its `fit` evaluates what the job writes, and ends with it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.errors import ConfigError
from tfdist.keras_bridge import sidecar
from tfdist.keras_bridge.sidecar import Sidecar
from tfdist.strategies import SingleDeviceStrategy


@pytest.fixture
def chief() -> Iterator[socket.socket]:
    """Something that listens at the chief's address until it is closed."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(50)
    yield listening
    listening.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "_POLL", 0.05)
    monkeypatch.setattr(sidecar, "_GONE", 0.3)


def _job(chief: socket.socket, tmp_path: Path, timeout: float = 30.0) -> Sidecar:
    address = f"127.0.0.1:{chief.getsockname()[1]}"
    jobs = {"chief": [address], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
    cluster = Cluster(jobs, "evaluator", 0, "a test")
    return Sidecar(cluster, str(tmp_path / "checkpoints"), str(tmp_path / "logs"), timeout)


def _model() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


X = np.ones((4, 2), "float32")
Y = np.full((4, 1), 2.0, "float32")


def _write(folder: Path, weight: float, step: int, name: str = "last.keras") -> None:
    """Writes a checkpoint as a job does: whole, under its name in one step."""
    model = _model()
    model.set_weights([np.full((2, 1), weight, "float32")])
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(step)
    folder.mkdir(exist_ok=True)
    model.save(folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def _evaluator_model(job: Sidecar) -> Any:
    strategy = SingleDeviceStrategy()
    strategy.tfdist.sidecar = job
    with strategy.scope():
        return _model()


def test_evaluates_each_checkpoint_and_keeps_the_best(
    chief: socket.socket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    job = _job(chief, tmp_path)
    folder = Path(str(job.checkpoint_dir))
    model = _evaluator_model(job)

    def train() -> None:
        for number, weight in enumerate([0.0, 1.0, 3.0], start=1):
            _write(folder, weight, 10 * number)
            _write(folder, weight, 10 * number, "best.keras")  # the same state again
            until = time.monotonic() + 20
            while f"at step {10 * number}" not in caplog.text and time.monotonic() < until:
                time.sleep(0.02)
        (folder / "broken.keras").write_text("not a model")
        chief.close()

    thread = threading.Thread(target=train)
    thread.start()
    with pytest.raises(SystemExit) as ended:
        model.fit(X, Y, epochs=9, validation_data=(X, Y), verbose=0)
    thread.join()
    assert ended.value.code == 0
    assert caplog.text.count("evaluated ") == 4, caplog.text  # three steps, and the last line
    assert "broken.keras can't be read" in caplog.text
    best = keras.models.load_model(folder / "evaluator" / "best.keras")
    np.testing.assert_array_equal(best.get_weights()[0], np.ones((2, 1)))
    assert _scalars(tmp_path / "logs" / "evaluator") == {
        ("evaluation_loss_vs_iterations", 10): 4.0,
        ("evaluation_loss_vs_iterations", 20): 0.0,
        ("evaluation_loss_vs_iterations", 30): 16.0,
        ("evaluation_mae_vs_iterations", 10): 2.0,
        ("evaluation_mae_vs_iterations", 20): 0.0,
        ("evaluation_mae_vs_iterations", 30): 4.0,
    }


def _scalars(folder: Path) -> dict[tuple[str, int], float]:
    found = {}
    for file in folder.iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


def test_a_job_that_ends_without_a_checkpoint_is_a_failure(
    chief: socket.socket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    threading.Timer(0.5, chief.close).start()
    with pytest.raises(SystemExit) as ended:
        _evaluator_model(_job(chief, tmp_path)).fit(X, Y, validation_data=(X, Y), verbose=0)
    assert ended.value.code == 1
    assert "left no checkpoint" in caplog.text


def test_a_job_that_does_not_start_is_not_waited_for_for_ever(
    chief: socket.socket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = _job(chief, tmp_path, timeout=0.3)
    chief.close()
    with pytest.raises(SystemExit) as ended:
        _evaluator_model(job).fit(X, Y, validation_data=(X, Y), verbose=0)
    assert ended.value.code == 1
    assert "did not start within" in caplog.text


def test_what_an_evaluator_needs(chief: socket.socket, tmp_path: Path) -> None:
    job = _job(chief, tmp_path)
    with pytest.raises(ConfigError, match="Pass validation_data to fit"):
        _evaluator_model(job).fit(X, Y, verbose=0)
    without = Sidecar(job.cluster, None, None, 1.0)
    with pytest.raises(ConfigError, match="Set checkpoint_dir"):
        _evaluator_model(without).fit(X, Y, validation_data=(X, Y), verbose=0)
