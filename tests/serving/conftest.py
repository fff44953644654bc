"""Clusters of real processes, each task of which can be killed by its id and started again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forks import Fork, Forks
from support.processes import held_ports

JOB = Path(__file__).with_name("job.py")


class Cluster:
    """A cluster of two workers and one ps, whose addresses stay the same over restarts."""

    def __init__(self, forks: Forks, folder: Path, addresses: list[str]) -> None:
        self.forks, self.folder = forks, folder
        self.jobs = {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:4]}
        self._starts = 0

    def start(self, name: str, how: str = "done", jobs: dict | None = None, **env: str) -> Fork:
        """Starts a task by its name, such as "worker 1"."""
        role, _, index = name.partition(" ")
        config = {"cluster": jobs or self.jobs, "task": {"type": role, "index": int(index or 0)}}
        self._starts += 1
        log = self.folder / f"{name.replace(' ', '-')}.{self._starts}.log"
        environ = {"TF_CONFIG": json.dumps(config), **env}
        return self.forks.start(name, JOB, [how, str(self.folder)], environ, log)

    def start_servers(self, **env: str) -> list[Fork]:
        """Starts all tasks but the chief."""
        return [self.start(name, **env) for name in ("worker 0", "worker 1", "ps 0")]

    def tell_end(self) -> None:
        """Lets the chief come to its end."""
        (self.folder / "end").touch()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    found = Forks()
    with contextlib.closing(found):
        yield found


@pytest.fixture
def cluster(forks: Forks, tmp_path: Path) -> Iterator[Cluster]:
    with held_ports(4) as addresses:
        try:
            yield Cluster(forks, tmp_path, addresses)
        finally:
            forks.end_all()
