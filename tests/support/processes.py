"""Starts small groups of real processes for a test, and never leaves one behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "PERSISTENT",
    "GroupError",
    "Result",
    "child_environment",
    "deadline",
    "end",
    "held_ports",
    "report",
    "run_group",
    "tf_config",
]

PERSISTENT: set[int] = set()
"""Process ids that are meant to outlive one test: the leak check passes over them."""

_SETTINGS = ("TF_CONFIG", "TFDIST_", "SLURM_", "PYTEST_", "OMPI_", "PMI")
_POLL = 0.02


class GroupError(AssertionError):
    """A group of processes failed; the message holds what every rank printed."""


@dataclass(frozen=True)
class Result:
    """What one process of a group left behind."""

    rank: int
    returncode: int | None
    """None when the process had to be killed at the deadline."""
    stdout: str
    stderr: str


def deadline(seconds: float) -> float:
    """Scales a deadline for slow or busy machines (`TFDIST_TEST_PATIENCE=2` doubles all of them)."""
    return seconds * float(os.environ.get("TFDIST_TEST_PATIENCE", "1"))


@contextlib.contextmanager
def held_ports(n: int) -> Iterator[list[str]]:
    """Yields `n` local addresses whose ports nobody else is given while the block runs.

    The sockets stay bound but never listen, so that a server which sets SO_REUSEADDR or SO_REUSEPORT can
    still take the port.
    """
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(n):
            held = stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{held.getsockname()[1]}")
        yield addresses


def tf_config(addresses: Sequence[str], rank: int) -> str:
    """Returns the TF_CONFIG of worker `rank` in a cluster of workers only."""
    return json.dumps(
        {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}}
    )


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment without what describes another cluster, plus `extra`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_SETTINGS)}
    environment |= {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTEROP_THREADS": "2",
    }
    return environment | dict(extra or {})


def end(processes: Sequence[subprocess.Popen], grace: float = 0.0) -> None:
    """Ends exactly these processes: SIGTERM and a pause when `grace` is given, then SIGKILL."""
    if grace:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + grace
        while time.monotonic() < until and any(p.poll() is None for p in processes):
            time.sleep(_POLL)
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait(timeout=30)


def report(problem: str, results: Sequence[Result]) -> str:
    """Returns `problem` followed by every rank's exit code and output."""
    parts = [problem]
    for result in results:
        code = "killed at the deadline" if result.returncode is None else result.returncode
        parts.append(f"---- rank {result.rank}: exit code {code}; stdout:\n{result.stdout}")
        parts.append(f"---- rank {result.rank}: stderr:\n{result.stderr}")
    return "\n".join(parts)


def run_group(
    script: str | os.PathLike[str],
    n: int = 1,
    args: Sequence[str] = (),
    timeout: float = 120.0,
    *,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    cluster: bool = True,
) -> list[Result]:
    """Runs a script file as `n` workers of one cluster and returns what each printed.

    Args:
        script: The Python file that every worker runs.
        n: The number of workers.
        args: Arguments of the script, the same for every worker; "{rank}" is replaced.
        timeout: The group's deadline in seconds. Whoever runs longer is killed by its id.
        env: Environment variables for all workers; "{rank}" in a value is replaced.
        check: Whether a worker that fails, or is killed at the deadline, is an error.
        cluster: Whether the workers get a TF_CONFIG; without it they are `n` separate programs.

    Raises:
        GroupError: `check` is true and a worker failed or did not end in time.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="group-")))
        addresses = stack.enter_context(held_ports(n))
        processes: list[subprocess.Popen] = []
        stack.callback(lambda: end(processes))
        for rank in range(n):
            own = {k: v.replace("{rank}", str(rank)) for k, v in (env or {}).items()}
            if cluster:
                own.setdefault("TF_CONFIG", tf_config(addresses, rank))
            outputs = [
                stack.enter_context(open(folder / f"{rank}.{stream}", "wb"))
                for stream in ("out", "err")
            ]
            command = [sys.executable, os.fspath(script)]
            command += [a.replace("{rank}", str(rank)) for a in args]
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=outputs[0],
                    stderr=outputs[1],
                    env=child_environment(own),
                )
            )
        until = time.monotonic() + deadline(timeout)
        while any(p.poll() is None for p in processes) and time.monotonic() < until:
            time.sleep(_POLL)
        codes = [p.poll() for p in processes]
        end(processes)
        results = [
            Result(
                rank,
                code,
                (folder / f"{rank}.out").read_text(errors="replace"),
                (folder / f"{rank}.err").read_text(errors="replace"),
            )
            for rank, code in enumerate(codes)
        ]
    if check and any(code != 0 for code in codes):
        raise GroupError(report(f"{script} failed with {n} worker(s).", results))
    return results
