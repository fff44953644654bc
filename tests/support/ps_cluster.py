"""The workers and parameter servers of a cluster whose chief is this process, or a child of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.processes import child_environment, end, held_ports

__all__ = ["PsCluster"]


class PsCluster:
    """Starts the server tasks of a cluster; they end with this process at the latest.

    Attributes:
        jobs: addresses by role.
        processes: by (role, index).
    """

    def __init__(
        self, workers: int, ps: int, env: Mapping[str, str] | None = None, logs: Path | None = None
    ) -> None:
        """Starts all tasks but the chief.

        Args:
            workers: how many workers.
            ps: how many parameter servers.
            env: environment variables of the tasks.
            logs: a folder for what each prints; None prints nothing.
        """
        self._env = dict(env or {})
        self._logs = logs
        self.processes: dict[tuple[str, int], subprocess.Popen] = {}
        with held_ports(1 + workers + ps) as addresses:
            self.jobs = {
                "chief": addresses[:1],
                "worker": addresses[1 : 1 + workers],
                "ps": addresses[1 + workers :],
            }
            for role, count in (("worker", workers), ("ps", ps)):
                for index in range(count):
                    self.start(role, index)

    def tf_config(self, role: str = "chief", index: int = 0) -> str:
        """Returns the TF_CONFIG of a task."""
        return json.dumps({"cluster": self.jobs, "task": {"type": role, "index": index}})

    def start(self, role: str, index: int) -> subprocess.Popen:
        """Starts a task, or starts it again at its address."""
        output = (
            subprocess.DEVNULL
            if self._logs is None
            else (self._logs / f"{role}-{index}.log").open("ab")
        )
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ps_task.py"))],
            env=child_environment({**self._env, "TF_CONFIG": self.tf_config(role, index)}),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
        self.processes[role, index] = process
        return process

    def kill(self, role: str, index: int) -> None:
        """Kills a task as a lost machine would."""
        end([self.processes[role, index]])

    def close(self) -> None:
        """Ends all tasks."""
        end(list(self.processes.values()))

    def __enter__(self) -> PsCluster:
        os.environ["TF_CONFIG"] = self.tf_config()
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop("TF_CONFIG", None)
        self.close()
