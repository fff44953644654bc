"""MirroredStrategy and SingleDeviceStrategy: devices, and hand-written loops as tf.distribute has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cases.loop_cases import by_hand
from support.server import CaseServer

CASES = "cases.loop_cases"


@pytest.fixture(scope="module")
def process() -> Iterator[CaseServer]:
    with CaseServer("keras_bridge.bridge_cases:start") as server:
        yield server


@pytest.fixture
def run(process: CaseServer) -> Callable[..., Any]:
    return lambda case, **kwargs: process.call(
        "keras_bridge.bridge_cases:call", run=f"{CASES}:{case}", **kwargs
    )[0]


@pytest.mark.parametrize(
    ("recipe", "size"),
    [
        ("Keras loss", 1.0),
        ("compute_average_loss", 1.0),
        ("divided again", 0.5),
        ("raw mean", 2.0),
        ("scaled", 1.0),
    ],
)
def test_p43_p38_hand_written_loops_keep_tf_distributes_convention(
    run: Any, recipe: str, size: float
) -> None:
    """A Keras loss divides by the replicas already, and gradients are summed: as without tfdist."""
    assert run("step_size", recipe=recipe) == pytest.approx(size, rel=1e-4)


def test_p93_an_optimizer_that_is_not_built(run: Any) -> None:
    assert run("step_size", recipe="Keras loss", built=False) == pytest.approx(1.0, rel=1e-4)


def test_p44_clipping_in_a_hand_written_loop_is_of_the_sum(run: Any) -> None:
    assert run("clipped_sum") == pytest.approx([-0.6, -0.8], rel=1e-5)


def test_wrong_devices_are_refused_at_once(run: Any) -> None:
    said = run("refusals")
    assert "CPU:5 does not exist" in said["missing"]
    assert "CPU:0 is named twice" in said["twice"]
    assert "NCCL works between GPUs only" in said["nccl"]
    assert "HierarchicalCopyAllReduce" in said["nccl"]
    assert "GPU:0 does not exist" in said["single"]


def test_strategies_without_arguments(run: Any) -> None:
    found = run("default_mirrored")
    one = {"workers": 1, "rank": 0, "chief": True, "sync_batch_norm": False}
    mirrored, single = found["mirrored"], found["single"]
    assert mirrored.items() >= (one | {"replicas": 2, "stock": True}).items()
    assert mirrored["devices"] == ["CPU:0", "CPU:1"]
    assert single.items() >= (one | {"replicas": 1}).items()
    for strategy in (mirrored, single):
        assert strategy["weights"] == pytest.approx(by_hand(), rel=1e-4, abs=1e-5)
