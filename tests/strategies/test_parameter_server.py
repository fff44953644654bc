"""`fit` on a coordinator: two workers and two ps, real processes, one cluster for each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.server import CaseServer

_CASES = "strategies.ps_cases"


@pytest.fixture(scope="module")
def chief() -> Iterator[CaseServer]:
    """An asynchronous coordinator."""
    with CaseServer(f"{_CASES}:start") as server:
        yield server


@pytest.mark.parametrize("execution", [1, 7])
def test_each_row_counts_once_and_outputs_keep_their_order(
    chief: CaseServer, execution: int
) -> None:
    (found,) = chief.call(f"{_CASES}:counts", 90.0, execution=execution)
    assert found["rows"] == [1003.0] * 3
    assert found["val_rows"] == [99.0] * 3
    assert found["iterations"] == 3 * 126
    assert found["loss"][-1] < found["loss"][0]
    np.testing.assert_allclose(found["predicted"], found["alone"], atol=1e-5)
    assert found["evaluated"] == pytest.approx(found["mae"], rel=1e-4)


def test_workers_read_parts_of_their_own(chief: CaseServer) -> None:
    (found,) = chief.call(f"{_CASES}:own_parts", 60.0)
    assert found["seen"] == [(0, 2, 1), (1, 2, 1)]
    assert found["iterations"] == 2 * 50 + 40
    assert all(np.isfinite(found["losses"]))


def test_a_python_generator_feeds_the_workers(chief: CaseServer) -> None:
    (found,) = chief.call(f"{_CASES}:generator", 60.0)
    assert found["iterations"] == 10


def test_variables_are_spread_by_bytes(chief: CaseServer) -> None:
    (found,) = chief.call(f"{_CASES}:placement", 60.0)
    large, small = max(found["bytes"]), min(found["bytes"])
    assert large - small <= 3 * 4000, found["bytes"]  # one variable with its two moments
    assert found["beside"]
    assert "ps 0:" in found["said"]
    assert "ps 1:" in found["said"]


def test_mistakes_are_told_and_leave_the_cluster_in_order(
    chief: CaseServer, tmp_path: Path
) -> None:
    (found,) = chief.call(f"{_CASES}:errors", 90.0, folder=str(tmp_path))
    assert found["eager"].startswith("UnsupportedError: A coordinator hands graphs")
    assert found["no steps"].startswith("DataError: A function given to `fit`")
    assert found["endless"].startswith("DataError: An endless dataset needs a number of steps")
    assert "expected shape" in found["shape"] or "incompatible" in found["shape"]
    assert "label" in found["labels"].lower()
    assert found["partitioner"].startswith("UnsupportedError: Keras 3 can't train variables")
    assert "ShardedEmbedding" in found["partitioner"]
    assert found["afterwards"] == "fine"


def test_schedules_loss_scaling_and_callbacks(chief: CaseServer, tmp_path: Path) -> None:
    (found,) = chief.call(f"{_CASES}:callbacks", 90.0, folder=str(tmp_path))
    assert found["epochs"] == 2, "EarlyStopping stops after the second epoch"
    assert found["optimizer"] == "LossScaleOptimizer"
    assert found["same"]
    assert found["files"] == ["history.csv", "last.keras", "logs"]


def test_a_step_goes_on_without_the_slowest_gradient() -> None:
    with CaseServer(
        f"{_CASES}:start", arguments=["synchronous", "backup_workers", "device_filters"]
    ) as server:
        (found,) = server.call(f"{_CASES}:backups", 90.0)
    assert found["iterations"] == 200, "every step was applied"
    last = f"epoch 4: {found['dropped']} gradients came too late for their steps and were dropped, so far"
    assert last in found["lines"]
    assert sum("ps 0: " in line and "ps 1: " in line for line in found["lines"]) == 1
    assert 0 < found["dropped"] <= 200, "of two gradients a step needs one"
    assert found["loss"][-1] < found["loss"][0]
