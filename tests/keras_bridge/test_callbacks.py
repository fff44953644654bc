"""Keras' built-in callbacks under two workers, with one path for both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.server import CaseServer

CASES = "keras_bridge.saving_cases"
READING = "keras_bridge.log_reading_cases"
LOG_ROWS = 80


@pytest.fixture(scope="module")
def workers() -> Iterator[CaseServer]:
    with CaseServer(f"{CASES}:multi_worker", n=2) as server:
        yield server


def test_model_checkpoint_in_all_its_modes(workers: CaseServer, tmp_path: Path) -> None:
    chief, other = workers.call(f"{CASES}:checkpoints", folder=str(tmp_path), timeout=90)
    assert chief == other
    assert chief["folders"]["best"] == ["best.keras"]
    assert [n[:2] for n in chief["folders"]["all"]] == ["01", "02", "03"]
    assert all(n.endswith(".keras") for n in chief["folders"]["all"])
    assert chief["folders"]["weights"] == [f"{n}.weights.h5" for n in (1, 2, 3)]
    assert chief["folders"]["steps"] == ["2-1.keras", "3-2.keras"]  # steps 3 and 6 of 2 a epoch


def test_logs_are_the_chiefs(workers: CaseServer, tmp_path: Path) -> None:
    chief, other = workers.call(f"{CASES}:logs", folder=str(tmp_path), timeout=90)
    assert chief == other
    lines = chief["lines"]
    assert lines[0] == "epoch,extra,loss,mae,val_extra,val_loss,val_mae"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "0"]
    assert chief["history"] == ["loss", "mae"]
    folders = {str(Path(name).parent) for name in chief["files"]}
    assert folders == {".", "board/train"}
    events = [n for n in chief["files"] if "tfevents" in n]
    assert len(events) == 1, "one process writes events"


def test_profiles_are_kept_for_each_worker(workers: CaseServer, tmp_path: Path) -> None:
    files = workers.call(f"{CASES}:logs", folder=str(tmp_path), profile=2, timeout=90)[0]["files"]
    traces = [n for n in files if n.endswith(".xplane.pb")]
    assert sorted(n.split("/plugins")[0] for n in traces) == ["board/train", "board/worker-1/train"]
    assert all("worker-1" not in n for n in files if "tfevents" in n)


@pytest.mark.parametrize(
    ("save_freq", "fail_at", "double", "epochs"),
    [
        ("epoch", 5, False, [2, 3]),
        (3, 5, True, [1, 2, 3]),  # resumes in the middle of epoch 1
        (2, 5, False, [2, 3]),  # a backup after the last batch of epoch 1
    ],
)
def test_an_interrupted_run_ends_as_a_straight_one(
    workers: CaseServer,
    tmp_path: Path,
    save_freq: Any,
    fail_at: int,
    double: bool,
    epochs: list[int],
) -> None:
    for result in workers.call(
        f"{CASES}:back_up_and_resume",
        folder=str(tmp_path),
        save_freq=save_freq,
        fail_at=fail_at,
        double=double,
        timeout=90,
    ):
        assert result["failed"] == "RuntimeError: interrupted"
        assert "latest.weights.h5" in result["kept"]
        assert result["epochs"] == epochs
        assert result["steps"] == 8
        assert result["apart"] < 1e-5
        assert not result["left"]


def test_folders_of_the_workers_own_hold_one_backup(workers: CaseServer, tmp_path: Path) -> None:
    for result in workers.call(
        f"{CASES}:back_up_and_resume",
        folder=str(tmp_path),
        save_freq="epoch",
        fail_at=5,
        own=True,
        timeout=90,
    ):
        assert result["steps"] == 8
        assert result["apart"] < 1e-5
    assert not list(tmp_path.iterdir())


def test_a_backup_that_not_all_workers_see_is_an_error_on_all(
    workers: CaseServer, tmp_path: Path
) -> None:
    for error in workers.call(f"{CASES}:unshared_backup", folder=str(tmp_path)):
        assert error.startswith(
            "SaveError: Not all workers see the backup that the chief resumes from: epoch 2, step 0"
        )
        assert "worker 1: no file, at" in error


def test_checkpoints_on_the_chief_alone_are_refused_before_a_step(
    workers: CaseServer, tmp_path: Path
) -> None:
    for error in workers.call(f"{CASES}:callbacks_on_chief_only", folder=str(tmp_path)):
        assert error.startswith(
            "ClusterError: The workers have different callbacks that save the model"
        )
        assert "worker 0: ModelCheckpoint; worker 1: none" in error


def test_a_damaged_backup_gives_way_to_the_one_before(workers: CaseServer, tmp_path: Path) -> None:
    for result in workers.call(f"{CASES}:resume_from_damaged", folder=str(tmp_path), both=False):
        assert result == {"error": "no error", "epochs": [1, 2], "steps": 6}


def test_only_damaged_backups_are_an_error_on_all(workers: CaseServer, tmp_path: Path) -> None:
    for result in workers.call(f"{CASES}:resume_from_damaged", folder=str(tmp_path), both=True):
        assert result["error"].startswith("SaveError")
        assert "No backup in the folder can be read" in result["error"]


def test_steering_callbacks_decide_alike(workers: CaseServer) -> None:
    chief, other = workers.call(f"{CASES}:steering", timeout=90)
    assert chief == other
    assert chief["epochs"] == [0, 1, 2, 3]
    assert chief["rates"][0] == 0.5
    assert chief["rates"][-1] < 0.05


def test_one_workers_vote_stops_all(workers: CaseServer) -> None:
    for result in workers.call(f"{CASES}:vote"):
        assert result["epochs"] == [0, 1]
        assert result["warnings"] == [
            "Only worker 1 set stop_training in epoch 2; all workers stop with it."
        ]
        assert result["again"] == [0, 1]


@pytest.mark.parametrize("raise_error", [False, True])
def test_nan_stops_all_in_the_same_step(workers: CaseServer, raise_error: bool) -> None:
    for result in workers.call(f"{CASES}:stop_on_nan", raise_error=raise_error):
        assert result["batches"] == [0, 1, 2]
        expected = "RuntimeError: NaN or Inf loss encountered at batch 2"
        assert result["error"].startswith(expected if raise_error else "no error")


def test_swapped_averages_are_what_is_saved(workers: CaseServer, tmp_path: Path) -> None:
    chief, other = workers.call(f"{CASES}:swap_average", folder=str(tmp_path))
    assert chief == other
    assert all(np.allclose(a, b) for a, b in zip(chief["weights"], chief["saved"]))


def test_embeddings_for_the_projector_are_written_once(workers: CaseServer, tmp_path: Path) -> None:
    files = workers.call(f"{CASES}:embeddings", folder=str(tmp_path))[0]
    assert "projector_config.pbtxt" in files
    assert "train/keras_embedding.ckpt-0.weights.h5" in files
    assert not [name for name in files if "worker" in name]


def test_a_callback_for_another_backend_is_refused(workers: CaseServer) -> None:
    for error in workers.call(f"{CASES}:refused"):
        assert error.startswith("UnsupportedError: OrbaxCheckpoint")


def test_workers_that_start_from_different_states_are_refused(workers: CaseServer) -> None:
    for error in workers.call(f"{CASES}:different_starts"):
        assert error.startswith("ClusterError: The workers start from different states")
        assert "worker 1 from epoch 1, step 0" in error


def test_memory_does_not_grow_with_the_epochs(workers: CaseServer) -> None:
    for result in workers.call(f"{CASES}:memory", epochs=200, warmup=40, timeout=150):
        assert result["growth"] < 0.1, result["samples"]


def exact(result: dict[str, Any]) -> None:
    """Fails unless the epochs' logs are those of all rows, and `evaluate` alone sees each batch's."""
    history = result["history"]
    assert history["loss"] == pytest.approx([first_part(LOG_ROWS)] * 2, rel=1e-5)
    assert history["val_loss"] == pytest.approx([first_part(48)] * 2, rel=1e-5)
    assert history["val_mae"] == pytest.approx([47 / 160] * 2, rel=1e-5)
    assert result["always"], "what is called after `fit` reads each step"


def first_part(rows: int) -> float:
    """Returns the mean loss of the first rows of all."""
    return float(np.square(np.arange(rows) / LOG_ROWS).mean())


def running(rows: int) -> list[float]:
    """Returns the mean loss after each batch of the first rows."""
    return [first_part(end) for end in range(8, rows + 1, 8)]


def test_a_callback_sees_the_logs_of_each_batch(workers: CaseServer) -> None:
    for result in workers.call(f"{READING}:fit_and_count", recorder="both"):
        exact(result)
        assert result["train"] == pytest.approx(running(80) * 2, rel=1e-5)
        assert result["test"] == pytest.approx(running(48) * 2, rel=1e-5)
        assert result["reads"] == result["executions"] == 32


def test_logs_that_only_the_bar_shows_are_seldom_summed(workers: CaseServer) -> None:
    for result in workers.call(f"{READING}:fit_and_count"):
        exact(result)
        assert result["history"]["mae"] == pytest.approx([79 / 160] * 2, rel=1e-5)
        assert result["alone"] == pytest.approx(running(80), rel=1e-5)
        # The first two steps of each epoch and each validation.
        assert (result["reads"], result["executions"]) == (8, 32)


def test_a_callback_of_one_worker_is_enough(workers: CaseServer) -> None:
    first, second = workers.call(f"{READING}:fit_and_count", recorder="second")
    for result in (first, second):
        exact(result)
        assert result["reads"] == result["executions"] == 32
    assert first["train"] == []
    assert second["train"] == pytest.approx(running(80) * 2, rel=1e-5)


def test_logs_of_a_steps_own_are_exact(workers: CaseServer) -> None:
    for result in workers.call(f"{READING}:fit_and_count", returns="more"):
        exact(result)
        assert result["history"]["largest"] == [3.0, 3.0]
    for result in workers.call(f"{READING}:fit_and_count", returns="less"):
        exact(result)
        assert "mae" not in result["history"]


def test_logs_of_executions_of_several_steps(workers: CaseServer) -> None:
    for result in workers.call(f"{READING}:fit_and_count", per_execution=2):
        exact(result)
        # 5 executions of an epoch and 3 of a validation; two of each are read.
        assert (result["reads"], result["executions"]) == (8, 16)
    for result in workers.call(f"{READING}:fit_and_count", per_execution=2, recorder="both"):
        exact(result)
        assert result["train"] == pytest.approx(running(80)[1::2] * 2, rel=1e-5)


def test_an_evaluation_within_an_epoch_is_exact(workers: CaseServer) -> None:
    """As on one device, it starts the epoch's metrics anew, and leaves its own rows in them."""
    losses = np.square(np.arange(LOG_ROWS) / LOG_ROWS)
    counted = np.concatenate([losses[:24], losses[48:]])
    for result in workers.call(f"{READING}:fit_and_count", inner_evaluate=True):
        assert result["history"]["loss"] == pytest.approx([counted.mean()] * 2, rel=1e-5)
        for seen in result["inner"]:
            assert seen == pytest.approx(running(24), rel=1e-5)
        assert len(result["inner"]) == 2
