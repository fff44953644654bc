"""MultiWorkerMirroredStrategy: two real workers with two devices each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cases.loop_cases import by_hand
from support.server import CaseServer

CASES = "cases.loop_cases"


@pytest.fixture(scope="module")
def group() -> Iterator[CaseServer]:
    with CaseServer(f"{CASES}:start_two_by_two", n=2) as server:
        yield server


@pytest.fixture
def run(group: CaseServer) -> Callable[..., list[Any]]:
    return lambda case, **kwargs: group.call(
        "keras_bridge.bridge_cases:call",
        run=case if ":" in case else f"{CASES}:{case}",
        **kwargs,
    )


def test_every_device_of_every_worker_is_a_replica(run: Any) -> None:
    for rank, found in enumerate(run("properties")):
        assert found == {
            "replicas": 4,
            "devices": ["CPU:0", "CPU:1"],
            "workers": 2,
            "rank": rank,
            "chief": rank == 0,
            "sync_batch_norm": False,
            "stock": True,
        }


def test_uneven_batches_train_to_one_devices_weights(run: Any) -> None:
    """7 rows in batches of 5 and 2 on 4 replicas: two of them are left without rows."""
    for weights in run("trained"):
        assert weights == pytest.approx(by_hand(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("recipe", "size"),
    [
        ("Keras loss", 1.0),
        ("divided again", 0.25),
        ("raw mean", 4.0),
    ],
)
def test_p43_hand_written_loops_keep_tf_distributes_convention(
    run: Any, recipe: str, size: float
) -> None:
    assert run("step_size", recipe=recipe) == pytest.approx([size] * 2, rel=1e-4)


def test_p44_clipping_in_a_hand_written_loop_is_of_the_sum(run: Any) -> None:
    for value in run("clipped_sum"):
        assert value == pytest.approx([-0.6, -0.8], rel=1e-5)


def test_shuffles_of_different_orders_are_refused_on_every_worker(run: Any) -> None:
    results = run("unseeded_shuffle")
    for result in results:
        assert "different global batches" in result["refused"]
        assert "same seed on all workers" in result["refused"]
    assert results[0]["loss"] == results[1]["loss"], "the workers can go on"


@pytest.mark.parametrize("seeds", [[None, None], [3, 4], [3, None], [7, 7]])
def test_arrays_that_fit_shuffles_are_seen_whole(run: Any, seeds: list[int | None]) -> None:
    workers = run("arrays_shuffled_by_keras", seeds=seeds)
    orders = []
    for epoch in range(2):
        own = [worker[epoch] for worker in workers]
        assert sorted(own[0] + own[1]) == list(range(17))
        orders.append(own)
    if seeds != [7, 7]:  # where all are seeded alike, Keras' own order: the same in each epoch
        assert orders[0] != orders[1], "each epoch has an order of its own"


@pytest.mark.parametrize("batches", [5])
def test_several_steps_per_execution_of_data_of_unknown_length(run: Any, batches: int) -> None:
    case = "keras_bridge.replica_cases:unknown_steps"
    results = run(case, batches=batches, per_execution=3)
    for result in results:
        assert result["steps"] == 2 * batches
        assert result["rows"] == 4 * batches - 1
        np.testing.assert_allclose(result["loss"], results[0]["loss"])
        assert np.isfinite(result["evaluate"])
