"""What becomes of a parameter server job when its processes are killed: real processes, by their ids."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import child_environment, deadline, end
from support.ps_cluster import PsCluster

sys.path.insert(0, str(Path(__file__).parent))

_JOB = Path(__file__).with_name("ps_job.py")
_STEPS, _SAVE_EVERY, _IN_FLIGHT = 60, 20, 4


class Chief:
    """The chief's process, whose lines can be waited for."""

    def __init__(self, cluster: PsCluster, *arguments: object) -> None:
        self.lines: list[str] = []
        self._new: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, str(_JOB), *map(str, arguments)],
            env=child_environment({"TF_CONFIG": cluster.tf_config(), "TF_CPP_MIN_LOG_LEVEL": "3"}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._new.put(line.rstrip())
        self._new.put(None)

    def wait_for(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        """Returns the next line that matches."""
        until = time.monotonic() + deadline(seconds)
        while True:
            try:
                line = self._new.get(timeout=max(until - time.monotonic(), 0.01))
            except queue.Empty:
                pytest.fail(f"no line {pattern!r} in {seconds:.0f} s:\n" + self.text)
            if line is None:
                pytest.fail(f"ended without a line {pattern!r}:\n" + self.text)
            self.lines.append(line)
            found = re.search(pattern, line)
            if found:
                return found

    def wait(self, seconds: float = 60.0) -> int:
        """Returns the exit code."""
        return self.process.wait(timeout=deadline(seconds))

    @property
    def text(self) -> str:
        return "\n".join(self.lines[-60:])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PsCluster]:
    """Two workers and one ps."""
    cluster = PsCluster(workers=2, ps=1, logs=tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def chief(cluster: PsCluster, tmp_path: Path) -> Iterator[Chief]:
    """A chief that has begun to train two epochs."""
    chief = Chief(cluster, tmp_path / "backup", 2, 4.0)
    yield chief
    end([chief.process])


def _ended(cluster: PsCluster, seconds: float) -> dict[tuple[str, int], int | None]:
    """Returns the exit codes of the servers, once they have ended by themselves."""
    until = time.monotonic() + deadline(seconds)
    for process in cluster.processes.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(until - time.monotonic(), 0.01))
    return {task: process.returncode for task, process in cluster.processes.items()}


def test_a_killed_worker_is_replaced_by_the_other_and_comes_back(
    cluster: PsCluster, tmp_path: Path
) -> None:
    hold = tmp_path / "go_on"
    chief = Chief(cluster, tmp_path / "backup", 2, 60.0, hold)
    try:
        chief.wait_for("batch 20")
        cluster.kill("worker", 1)
        chief.wait_for("epoch 1:")
        chief.wait_for("worker 1 at .* is gone; the other workers do its steps")
        cluster.start("worker", 1)
        chief.wait_for("worker 1 at .* is back", 40)
        hold.touch()
        done = int(chief.wait_for(r"finished at (\d+)")[1])
        # A step that the worker had begun is done again: TensorFlow promises "at least once".
        assert 2 * _STEPS <= done <= 2 * _STEPS + 1
        assert chief.wait() == 0
        assert set(_ended(cluster, 30).values()) == {0}
    finally:
        end([chief.process])


def test_without_any_worker_fit_waits_and_then_says_so(
    cluster: PsCluster, chief: Chief, tmp_path: Path
) -> None:
    chief.wait_for("batch 30")
    cluster.kill("worker", 0)
    cluster.kill("worker", 1)
    began = time.monotonic()
    line = chief.wait_for("ClusterError: No worker of 2 has answered").string
    assert time.monotonic() - began > 3.0, "it should have waited for its worker_timeout"
    for part in ("worker 0 at", "worker_timeout=4", "backup"):
        assert part in line
    assert chief.wait() == 3
    assert list((tmp_path / "backup").glob("*.weights.h5")), "the backup must stay"


def test_a_killed_ps_ends_the_job_and_the_next_one_resumes(
    cluster: PsCluster, chief: Chief, tmp_path: Path
) -> None:
    chief.wait_for("epoch 1")
    chief.wait_for("batch 30")
    cluster.kill("ps", 0)
    assert "variables" in chief.wait_for("ClusterError: ps 0 at .* is gone", 40).string
    assert chief.wait() == 3
    codes = _ended(cluster, 40)
    assert codes["worker", 0] == codes["worker", 1] == 1, codes
    _resume(tmp_path, at_least=_STEPS + 30 - 10 - _SAVE_EVERY)


def test_a_killed_chief_ends_the_servers_and_the_next_job_resumes(
    cluster: PsCluster, chief: Chief, tmp_path: Path
) -> None:
    chief.wait_for("epoch 1")
    chief.wait_for("batch 30")
    end([chief.process])
    assert set(_ended(cluster, 40).values()) == {1}
    _resume(tmp_path, at_least=_STEPS + 30 - 10 - _SAVE_EVERY)


def _resume(tmp_path: Path, at_least: int) -> None:
    """Starts the job again, which loses one backup interval at most, and lets it finish."""
    cluster = PsCluster(workers=2, ps=1)
    chief = Chief(cluster, tmp_path / "backup", 2, 60.0)
    try:
        start = int(chief.wait_for(r"starts at (\d+)")[1])
        assert at_least <= start < 2 * _STEPS
        assert int(chief.wait_for(r"finished at (\d+)")[1]) == 2 * _STEPS
        assert chief.wait() == 0
        assert set(_ended(cluster, 30).values()) == {0}
    finally:
        end([chief.process])
        cluster.close()
