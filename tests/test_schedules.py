"""Learning rates scaled for weak scaling: linear and sqrt, warm-up, applied once (P88)."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest

from tfdist.errors import ConfigError
from tfdist.schedules import ScaledLearningRate

STEPS_PER_EPOCH = 10


def by_epoch(schedule, epochs: int = 8) -> list[float]:
    """Returns the rate of the last step of each epoch."""
    return [float(schedule(epoch * STEPS_PER_EPOCH + 9)) for epoch in range(epochs)]


def test_linear_with_a_warm_up_of_five_epochs() -> None:
    schedule = ScaledLearningRate(0.1, 4, warmup_steps=5 * STEPS_PER_EPOCH)
    assert by_epoch(schedule) == pytest.approx([0.16, 0.22, 0.28, 0.34, 0.4, 0.4, 0.4, 0.4])
    assert float(schedule(0)) == pytest.approx(0.1 + 0.3 / 50)


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_rules(rule: str, factor: float) -> None:
    assert by_epoch(ScaledLearningRate(0.1, 4, rule)) == pytest.approx([0.1 * factor] * 8)


def test_one_replica_changes_nothing() -> None:
    assert by_epoch(ScaledLearningRate(0.1, 1, warmup_steps=30)) == pytest.approx([0.1] * 8)


def test_scales_a_schedule() -> None:
    inner = keras.optimizers.schedules.CosineDecay(0.1, 80)
    scaled = ScaledLearningRate(inner, 4, warmup_steps=STEPS_PER_EPOCH)
    expected = [4 * float(inner(epoch * STEPS_PER_EPOCH + 9)) for epoch in range(8)]
    assert by_epoch(scaled) == pytest.approx(expected)


def test_is_refused_twice() -> None:
    with pytest.raises(ConfigError, match="already scaled"):
        ScaledLearningRate(ScaledLearningRate(0.1, 4), 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "cubic"}, "rule='cubic'.*linear, sqrt"),
        ({"replicas": 0}, "replicas=0.*num_replicas"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
    ],
)
def test_wrong_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScaledLearningRate(**{"learning_rate": 0.1, "replicas": 4, **arguments})


def test_says_what_it_does(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tfdist.schedules"):
        ScaledLearningRate(0.1, 4, "sqrt", 50)
    assert "Learning rate x 2 (sqrt, 4 replicas), reached after 50 steps." in caplog.text


@pytest.mark.parametrize("inner", [0.1, keras.optimizers.schedules.CosineDecay(0.1, 80)])
def test_a_resumed_model_goes_on_at_its_rate(inner, tmp_path) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    schedule = ScaledLearningRate(inner, 4, warmup_steps=20)
    model.compile(keras.optimizers.SGD(schedule), "mse")
    x = np.ones((24, 4), "float32")
    model.fit(x, x[:, :1], batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert int(again.optimizer.iterations) == 12
    rates = [float(m.optimizer.learning_rate) for m in (again, model)]
    assert rates[0] == pytest.approx(rates[1])
    assert rates[0] == pytest.approx(float(schedule(12)))
