"""A persistent group of processes that is fed test cases.

Importing TensorFlow takes seconds, so one group runs all cases of a module. A case that fails in a group of
several processes may have left a collective half done, which poisons every process of the group: the group is
then started afresh for the next case.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from support import case_worker
from support.processes import (
    PERSISTENT,
    GroupError,
    Result,
    child_environment,
    deadline,
    end,
    held_ports,
    report,
    tf_config,
)

__all__ = ["CaseError", "CaseServer"]

_START = 90.0
_GRACE = 6.0


class CaseError(GroupError):
    """A case failed; the message holds every rank's error and output."""


@dataclass
class _Member:
    """One running process of the group."""

    process: subprocess.Popen
    pipe: Connection
    stdout: Path
    stderr: Path
    seen: dict[str, int] = field(default_factory=lambda: {"out": 0, "err": 0})

    def output(self) -> tuple[str, str]:
        """Returns what the process printed since the last call."""
        texts = []
        for key, path in (("out", self.stdout), ("err", self.stderr)):
            data = path.read_bytes()
            texts.append(data[self.seen[key] :].decode(errors="replace"))
            self.seen[key] = len(data)
        return texts[0], texts[1]


class CaseServer:
    """`n` processes that run cases together.

    Args:
        setup: "module:function" that every process calls once; its result is each case's first argument.
        n: The number of processes; more than one form a cluster (TF_CONFIG).
        arguments: Text arguments of `setup`.
        env: Environment variables of the processes.
        start_timeout: Deadline of starting the group, in seconds.
    """

    def __init__(
        self,
        setup: str,
        n: int = 1,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        start_timeout: float = _START,
    ) -> None:
        self.n = n
        self.starts = 0
        self._setup = setup
        self._arguments = list(arguments)
        self._env = dict(env or {})
        self._start_timeout = start_timeout
        self._members: list[_Member] = []
        self._stack = ExitStack()

    def call(self, case: str, timeout: float = 60.0, **kwargs: Any) -> list[Any]:
        """Runs one case on every process and returns the answers by rank.

        Args:
            case: "module:function", called as `function(state, **kwargs)`.
            timeout: Deadline in seconds; the group is killed when it is missed.
            **kwargs: Picklable arguments, the same on every rank.

        Raises:
            CaseError: A process raised an error, died, or missed the deadline.
        """
        if not self._members:
            self._start()
        for member in self._members:
            member.output()
            try:
                member.pipe.send((case, kwargs))
            except OSError:
                continue  # found dead below, and reported with its output
        return self._collect(f"{case}({_shown(kwargs)})", timeout)

    def close(self) -> None:
        """Ends the group; the next call starts it again."""
        processes = [m.process for m in self._members]
        for member in self._members:
            member.pipe.close()  # the process leaves its loop
        until = time.monotonic() + 2.0
        while time.monotonic() < until and any(p.poll() is None for p in processes):
            time.sleep(0.02)
        end(processes)
        PERSISTENT.difference_update(p.pid for p in processes)
        self._members = []
        self._stack.close()

    def __enter__(self) -> CaseServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self.starts += 1
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cases-")))
        addresses = self._stack.enter_context(held_ports(self.n)) if self.n > 1 else []
        for rank in range(self.n):
            ours, theirs = multiprocessing.Pipe()
            stdout, stderr = folder / f"{rank}.out", folder / f"{rank}.err"
            own = dict(self._env)
            if addresses:
                own["TF_CONFIG"] = tf_config(addresses, rank)
            with open(stdout, "wb") as out, open(stderr, "wb") as err:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        case_worker.__file__,
                        str(theirs.fileno()),
                        str(os.getpid()),
                        self._setup,
                        *self._arguments,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    pass_fds=[theirs.fileno()],
                    env=child_environment(own),
                )
            theirs.close()
            PERSISTENT.add(process.pid)
            self._members.append(_Member(process, ours, stdout, stderr))
        self._collect("the start of the group", self._start_timeout)

    def _collect(self, what: str, timeout: float) -> list[Any]:
        """Waits for every rank's answer, or explains why there is none and ends the group."""
        until = time.monotonic() + deadline(timeout)
        answers: dict[int, tuple[str, Any]] = {}
        problem = ""
        while len(answers) < self.n:
            left = until - time.monotonic()
            if left <= 0:
                problem = problem or f"missed its deadline of {deadline(timeout):.0f} s"
                break
            missing = {m.pipe: r for r, m in enumerate(self._members) if r not in answers}
            for pipe in wait(list(missing), timeout=left):
                rank = missing[pipe]  # type: ignore[index]
                try:
                    answers[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    answers[rank] = ("died", ("", "the process died", ""))
                if answers[rank][0] != "ok" and not problem:
                    kind, text = answers[rank][1][:2]
                    problem = f"failed on rank {rank}: {kind}: {text}"
                    # The others may be waiting for this rank in a collective.
                    until = min(until, time.monotonic() + _GRACE)
        if not problem:
            return [answers[rank][1] for rank in range(self.n)]
        message = self._explain(f"{what} {problem}", answers)
        if self.n > 1 or len(answers) < self.n or any(a[0] == "died" for a in answers.values()):
            self.close()
        raise CaseError(message)

    def _explain(self, problem: str, answers: Mapping[int, tuple[str, Any]]) -> str:
        results = []
        for rank, member in enumerate(self._members):
            stdout, stderr = member.output()
            status, value = answers.get(rank, ("no answer", None))
            if status == "error":
                stderr += f"\n{value[2]}"
            else:
                stderr += f"\n(rank {rank}: {status})"
            if status == "died":
                member.process.wait(timeout=30)
            results.append(Result(rank, member.process.poll(), stdout, stderr))
        text = report(problem, results)
        return text.replace("exit code killed at the deadline", "still running")


def _shown(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in kwargs.items() if isinstance(v, (str, int, float)))
