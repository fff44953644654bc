"""Which tasks of a parameter server cluster are there: real sockets, no TensorFlow."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

import pytest
from support.processes import deadline

from tfdist.cluster import Cluster
from tfdist.strategies import task_watch
from tfdist.strategies.task_watch import TaskWatch


class _Task:
    """Something that listens at an address, or not."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._socket.listen()

    def go(self) -> None:
        self._socket.close()

    def come_back(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self.port))
        self._socket.listen()


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> dict[str, _Task]:
    monkeypatch.setattr(task_watch, "_PERIOD", 0.05)
    monkeypatch.setattr(task_watch, "_PS_GONE", 0.3)
    monkeypatch.setattr(task_watch, "_WORKER_GONE", 0.2)
    return {name: _Task() for name in ("worker 0", "worker 1", "ps 0")}


def _watch(tasks: dict[str, _Task], timeout: float = 60.0) -> TaskWatch:
    jobs: dict[str, list[str]] = {"chief": ["127.0.0.1:1"], "worker": [], "ps": []}
    for name, task in tasks.items():
        jobs[name.split()[0]].append(f"127.0.0.1:{task.port}")
    return TaskWatch(Cluster(jobs, "chief", 0, "a test"), timeout)


def _eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + deadline(10)
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_worker_may_go_and_come_back(
    tasks: dict[str, _Task], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    watch = _watch(tasks)
    tasks["worker 1"].go()
    _eventually(lambda: "worker 1 at" in caplog.text and "is gone" in caplog.text)
    tasks["worker 1"].come_back()
    _eventually(lambda: "is back" in caplog.text)
    assert watch.failure is None
    assert "worker 0" not in caplog.text
    watch.close()


def test_a_ps_that_goes_ends_the_job(tasks: dict[str, _Task]) -> None:
    watch = _watch(tasks)
    tasks["ps 0"].go()
    _eventually(lambda: watch.failure is not None)
    assert watch.failure is not None
    assert watch.failure.startswith(f"ps 0 at 127.0.0.1:{tasks['ps 0'].port} is gone")
    assert "backup" in watch.failure
    watch.close()


def test_no_worker_for_too_long_ends_the_job(tasks: dict[str, _Task]) -> None:
    watch = _watch(tasks, timeout=0.5)
    tasks["worker 0"].go()
    time.sleep(0.8)
    assert watch.failure is None, "one worker is left"
    tasks["worker 1"].go()
    _eventually(lambda: watch.failure is not None)
    assert "No worker of 2 has answered" in str(watch.failure)
    assert "worker_timeout=0.5" in str(watch.failure)
    watch.close()
