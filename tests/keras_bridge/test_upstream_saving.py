"""Keras still does what the saving repairs stand in for.

A test here that fails says that upstream has changed: the repair named in its docstring may be
dropped, or has to be looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.server import CaseServer

CASES = "keras_bridge.upstream_cases"


@pytest.fixture(scope="module")
def workers() -> Iterator[CaseServer]:
    with CaseServer(f"{CASES}:multi_worker", n=2) as server:
        yield server


@pytest.fixture(scope="module")
def mirrored() -> Iterator[CaseServer]:
    with CaseServer(f"{CASES}:mirrored") as server:
        yield server


def test_every_worker_writes_the_file(workers: CaseServer, tmp_path: Path) -> None:
    """saving_lib.save_model, save_weights_only, save_model_to_hdf5, Model.export, write_out."""
    for rewritten in workers.call(f"{CASES}:who_writes", folder=str(tmp_path)):
        assert len(rewritten) == 5


def test_every_worker_saves_statistics_of_its_own(workers: CaseServer, tmp_path: Path) -> None:
    """replica_state.sync_batch_statistics."""
    first, second = workers.call(f"{CASES}:own_statistics", folder=str(tmp_path))
    assert not np.allclose(first, second, atol=1e-4)


def test_every_worker_writes_the_logs(workers: CaseServer, tmp_path: Path) -> None:
    """CSVLogger, TensorBoard.set_model."""
    for result in workers.call(f"{CASES}:log_files", folder=str(tmp_path)):
        assert result == {"logged": True, "event files": 2}


def test_every_worker_decides_what_is_best(workers: CaseServer, tmp_path: Path) -> None:
    """ModelCheckpoint._save_model."""
    assert workers.call(f"{CASES}:own_decisions", folder=str(tmp_path)) == [0.0, 1.0]


def test_every_worker_stops_by_itself(workers: CaseServer) -> None:
    """callbacks.adapt."""
    assert workers.call(f"{CASES}:own_vote") == [[False], [True]]


def test_every_worker_asks_at_the_terminal(workers: CaseServer, tmp_path: Path) -> None:
    """saving_api.save_model, save_weights."""
    assert workers.call(f"{CASES}:asks", folder=str(tmp_path)) == ["EOFError", "EOFError"]


def test_the_first_replicas_statistics_are_saved(mirrored: CaseServer, tmp_path: Path) -> None:
    """replica_state.sync_batch_statistics."""
    result = mirrored.call(f"{CASES}:replica_statistics", folder=str(tmp_path))[0]
    assert result["saved"] == result["first"]
    assert not np.allclose(result["first"], result["second"], atol=1e-4)


def test_an_unbuilt_optimizer_loses_its_state(mirrored: CaseServer, tmp_path: Path) -> None:
    """saving_lib.load_weights_only."""
    result = mirrored.call(f"{CASES}:unbuilt_optimizer", folder=str(tmp_path))[0]
    assert result["saved"] == 2
    assert result["loaded"] == 0
    assert any("Skipping variable loading for optimizer" in text for text in result["warnings"])


def test_a_failed_write_destroys_the_earlier_file(mirrored: CaseServer, tmp_path: Path) -> None:
    """atomic.replacing, in all saves."""
    result = mirrored.call(f"{CASES}:full_disk", folder=str(tmp_path))[0]
    assert result == {"failed": True, "readable": False}


def test_a_backup_within_an_epoch_repeats_steps(mirrored: CaseServer, tmp_path: Path) -> None:
    """BackupAndRestore.on_train_begin, on_epoch_begin; EpochIterator._enumerate_iterator."""
    result = mirrored.call(f"{CASES}:resumed_steps", folder=str(tmp_path / "backup"))[0]
    assert result == {"steps": 7, "noted": 0}  # 6 steps make 3 epochs, and this is epoch 1
