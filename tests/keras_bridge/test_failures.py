"""When one worker fails, the others say so in one line and end (cases P82, P51)."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes import Result, deadline, run_group

from tfdist.keras_bridge import failures

JOB = Path(__file__).with_name("failing_job.py")


RUNS: dict[str, tuple[str, int, dict[str, str]]] = {
    "worker fails": ("callback", 1, {}),
    "chief fails": ("callback", 0, {}),
    "worker killed": ("killed", 1, {}),
    "chief killed": ("killed", 0, {}),
    "worker left": ("left", 1, {}),
    "nan": ("nan", 1, {}),
    "stop in an epoch": ("batch_stop", 1, {"TFDIST_SAVE_TIMEOUT": "2"}),
}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Result]]:
    """Runs all jobs, two at a time: they mostly wait for heartbeats."""

    def run(name: str) -> list[Result]:
        how, rank, env = RUNS[name]
        return run_group(JOB, 2, [how, str(rank)], timeout=150, env=env, check=False)

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(RUNS, pool.map(run, RUNS)))


def end_of_fit(result: Result) -> float:
    match = re.search(r"ended at ([\d.]+)", result.stdout)
    assert match, result.stderr
    return float(match[1])


def last_line(result: Result) -> str:
    """Returns the last line of the traceback; TensorFlow may log after it."""
    lines = [line for line in result.stderr.splitlines() if re.match(r"\S*Error: ", line)]
    return lines[-1] if lines else result.stderr


@pytest.mark.parametrize(("name", "rank"), [("worker fails", 1), ("chief fails", 0)])
def test_a_users_error_is_told_to_the_other_worker(
    results: dict[str, list[Result]], name: str, rank: int
) -> None:
    failed, other = results[name][rank], results[name][1 - rank]
    assert failed.returncode == other.returncode == 1
    assert "ValueError: user bug" in failed.stderr
    assert (
        last_line(other)
        == f"tfdist.errors.ClusterError: worker {rank} failed: ValueError: user bug"
    )
    assert "UnavailableError" not in other.stderr
    assert "AbortedError" not in other.stderr
    apart = abs(end_of_fit(other) - end_of_fit(failed))
    assert apart < deadline(4)  # and not the ten seconds of a missing heartbeat


def test_a_killed_worker_is_named(results: dict[str, list[Result]]) -> None:
    chief, killed = results["worker killed"]
    assert killed.returncode == -9
    assert chief.returncode == 1
    assert last_line(chief).startswith("tfdist.errors.ClusterError: worker 1 ended without a word")


def test_a_killed_chief_is_named(results: dict[str, list[Result]]) -> None:
    killed, other = results["chief killed"]
    assert killed.returncode == -9
    # TensorFlow may end a worker itself when the coordination service is gone.
    assert other.returncode not in (0, None)
    if other.returncode == 1:
        assert "worker 0 ended without a word" in last_line(other)


def test_a_stop_within_an_epoch_by_one_worker_is_an_error_not_a_hang(
    results: dict[str, list[Result]],
) -> None:
    other, stopping = results["stop in an epoch"]
    assert stopping.returncode == other.returncode == 1
    line = last_line(stopping)
    assert "stop_training was set on worker 1 in the middle of an epoch, but not on all" in line
    assert "worker 0 went on" in line
    assert "epoch 0, batch 1" in line
    assert last_line(other).startswith(
        "tfdist.errors.ClusterError: worker 1 failed: ClusterError: stop_training was set"
    )


def test_work_that_one_worker_no_longer_takes_part_in_ends_with_a_reason(
    results: dict[str, list[Result]],
) -> None:
    chief, left = results["worker left"]
    assert left.returncode == 0
    assert chief.returncode == 1
    assert last_line(chief).startswith("tfdist.errors.ClusterError: worker 1 ended without a word")


def test_nan_in_a_workers_rows_is_told_to_the_other(results: dict[str, list[Result]]) -> None:
    other, failed = results["nan"]
    line = "DataError: replica 1 of 2: the input x has NaN values"
    assert last_line(failed).startswith(f"tfdist.errors.{line}")
    assert last_line(other).startswith(f"tfdist.errors.ClusterError: worker 1 failed: {line}")


def test_an_error_is_one_line() -> None:
    assert failures.summary(ValueError("one\ntwo")) == "ValueError: one"
    assert failures.summary(ValueError()) == "ValueError"
    assert len(failures.summary(ValueError("x" * 1000))) == 300
    graph = "Graph execution error:\n\nDetected at node x defined at (most recent call last):\nNaN"
    assert failures.summary(RuntimeError(graph)) == "RuntimeError: NaN"
