"""Saving and loading under several workers and replicas: one file, the same model for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.server import CaseServer

CASES = "keras_bridge.saving_cases"
FORMS = ("m.keras", "m.h5", "weights of m.weights.h5", "weights of m.weights.json")


@pytest.fixture(scope="module")
def workers() -> Iterator[CaseServer]:
    with CaseServer(f"{CASES}:multi_worker", n=2) as server:
        yield server


@pytest.fixture(scope="module")
def stock() -> Iterator[CaseServer]:
    with CaseServer(f"{CASES}:stock") as server:
        yield server


def close(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(np.allclose(x, y, atol=1e-6) for x, y in zip(a, b))


@pytest.fixture(scope="module")
def mirrored() -> Iterator[CaseServer]:
    with CaseServer(f"{CASES}:mirrored") as server:
        yield server


def check_loaded(results: dict[str, Any], saved: dict[str, Any]) -> None:
    for form in FORMS:
        values, slots = results[form]
        assert close(values, saved["weights"]), form
        if form != "m.h5":  # whose optimizer's state Keras itself does not restore
            assert np.allclose(slots, saved["slots"], atol=1e-6), form
    assert np.allclose(results["served"], saved["predictions"], atol=1e-5)


@pytest.mark.parametrize("source", ["workers", "mirrored", "stock"])
def test_what_one_strategy_saves_loads_under_every_other(
    workers: CaseServer, mirrored: CaseServer, stock: CaseServer, tmp_path: Path, source: str
) -> None:
    """2 replicas on 2 workers, 3 replicas in a process, and Keras alone."""
    servers = {"workers": workers, "mirrored": mirrored, "stock": stock}
    answers = servers[source].call(f"{CASES}:save_everywhere", folder=str(tmp_path))
    saved = answers[0]
    assert all(answer == saved for answer in answers)
    names = ["exported", "m.h5", "m.keras", "m.weights.h5", "m.weights.json"]
    assert [n for n in saved["files"] if not n.startswith("m_0")] == names  # and nothing staged
    for server in servers.values():
        for results in server.call(f"{CASES}:load_everything", folder=str(tmp_path)):
            check_loaded(results, saved)


def test_statistics_of_all_replicas_are_averaged(workers: CaseServer) -> None:
    results = workers.call(f"{CASES}:statistics")
    before = [own for result in results for own in result["before"]]
    after = [own for result in results for own in result["after"]]
    assert not np.allclose(before[0], before[1], atol=1e-3), "the replicas see different rows"
    assert all(np.allclose(own, np.mean(before, axis=0), atol=1e-6) for own in after)
    assert [result["variables"] for result in results] == [2, 2]


def test_a_write_that_needs_a_collective_does_not_hang(workers: CaseServer, tmp_path: Path) -> None:
    for result in workers.call(f"{CASES}:on_read_state", folder=str(tmp_path)):
        assert result["stored"] == result["read"] == 4.0  # 2 steps on 2 replicas


@pytest.mark.parametrize("caller", [0, 1])
def test_a_save_from_one_worker_alone_is_refused(
    workers: CaseServer, tmp_path: Path, caller: int
) -> None:
    results = workers.call(f"{CASES}:save_from_one", folder=str(tmp_path), caller=caller)
    error = results[caller]["error"]
    assert error.startswith("SaveError: `model.save` must be called on every worker")
    assert f"worker {1 - caller} did not call it within 2 s" in error
    assert "alone.keras" in error
    assert "if" in error
    assert results[1 - caller]["error"] == ""
    assert all(result["files"] == ["together.keras"] for result in results)


def test_workers_in_different_saves_are_told(workers: CaseServer, tmp_path: Path) -> None:
    results = workers.call(f"{CASES}:save_different_things", folder=str(tmp_path))
    assert results[0] == results[1]
    assert results[0].startswith("SaveError: The workers are in different calls")
    assert "worker 0: `model.save`, worker 1: `model.save_weights`" in results[0]
    assert not list(tmp_path.iterdir())


def test_a_worker_that_is_a_save_ahead_is_explained(workers: CaseServer, tmp_path: Path) -> None:
    chief, other = workers.call(f"{CASES}:save_apart", folder=str(tmp_path))
    assert other == [chief[0]] == ["no error"]
    assert "`model.save` must be called on every worker; worker 1 did not" in chief[1]
    assert "the save before this one had different paths" in chief[1]


def test_a_path_for_each_worker_gives_a_file_for_each(workers: CaseServer, tmp_path: Path) -> None:
    for files in workers.call(f"{CASES}:save_to_own_paths", folder=str(tmp_path)):
        assert files == ["worker0.keras", "worker1.keras"]


def test_an_error_of_the_chief_reaches_all(workers: CaseServer, tmp_path: Path) -> None:
    for error in workers.call(f"{CASES}:save_into_missing_folder", folder=str(tmp_path)):
        assert error.startswith("SaveError: Worker 0 could not write the file")
        assert "FileNotFoundError" in error
        assert "missing/m.keras" in error


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
def test_a_full_disk_leaves_the_earlier_file(
    workers: CaseServer, tmp_path: Path, name: str
) -> None:
    for result in workers.call(f"{CASES}:save_on_full_disk", folder=str(tmp_path), name=name):
        assert result["error"].startswith("SaveError: Worker 0 could not write the file")
        assert "File too large" in result["error"]
        assert result["untouched"]
        assert result["files"] == [name]


def test_overwrite_false_is_answered_without_a_terminal(
    workers: CaseServer, tmp_path: Path
) -> None:
    for result in workers.call(f"{CASES}:keep_existing", folder=str(tmp_path)):
        assert result["first"] == result["third"] == "no error"
        assert result["second"].startswith("SaveError: The file exists and overwrite=False")


def test_the_save_timeout_is_checked(workers: CaseServer, tmp_path: Path) -> None:
    for error in workers.call(f"{CASES}:bad_timeout", folder=str(tmp_path)):
        assert error.startswith("ConfigError: The save timeout must be a positive number")
        assert "'soon' (from TFDIST_SAVE_TIMEOUT)" in error
