"""Takes turns: several programs stay alive and run one block of work each, round after round.

A machine's speed drifts. Measured one after the other, the drift lands on one side of a comparison;
measured in turns (A B C, A B C, ...), it lands on all. Every contender is a group of processes of
its own, because a process can host one multi-worker strategy only, and because libraries change
their process (threads, devices). Whoever does not have the turn waits for a line on stdin.

    parent                          each process of a contender
    race(contenders, rounds)        serve(block)
        ---- "go" ---->             block() -> seconds
        <--- {"seconds": ...} ----
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

_MARK = "@turn "
_said_ready: list[bool] = []


@dataclass(frozen=True)
class Contender:
    """One program of a comparison.

    Attributes:
        name: how the report calls it.
        command: the program and its arguments; the same for each of its processes.
        workers: number of processes.
        one_core_each: whether process `i` is confined to core `i`.
    """

    name: str
    command: Sequence[str]
    workers: int = 1
    one_core_each: bool = False


@dataclass
class _Process:
    """A running process, its output read by a thread so that a silent one is noticed."""

    popen: subprocess.Popen[str]
    log: IO[bytes]
    lines: queue.Queue[str | None] = field(default_factory=queue.Queue)

    def read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith(_MARK):
                self.lines.put(line.removeprefix(_MARK))
        self.lines.put(None)

    def say(self, word: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(word + "\n")
        self.popen.stdin.flush()

    def answer(self, name: str, timeout: float) -> dict[str, float]:
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            raise RuntimeError(f"{name}: no answer for {timeout:.0f} s.\n{self.tail()}") from None
        if line is None:
            code = self.popen.wait(timeout=30)
            raise RuntimeError(f"{name}: ended with code {code}.\n{self.tail()}")
        return json.loads(line)

    def tail(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-4000:]


def wait_for_turn() -> None:
    """Returns when it is this process's turn; ends the process when there will be no more.

    The first call says that the process is warmed up.
    """
    if not _said_ready:
        _said_ready.append(True)
        print(_MARK + json.dumps({}), flush=True)
    if not sys.stdin.readline():
        os._exit(0)  # all of its group end now, so nobody is left to say goodbye to


def end_turn(seconds: float) -> None:
    """Hands the turn back, with how long the block of work took."""
    print(_MARK + json.dumps({"seconds": seconds}), flush=True)


def race(
    contenders: Sequence[Contender], rounds: int, timeout: float = 300.0
) -> Mapping[str, list[float]]:
    """Runs the contenders in turns.

    Args:
        contenders: the programs to compare.
        rounds: how many turns each gets.
        timeout: deadline of one turn, and of the start, in seconds.

    Returns:
        By contender, the seconds of each of its turns: those of its slowest process.

    Raises:
        RuntimeError: a process failed or did not answer in time; with the end of its stderr.
    """
    with contextlib.ExitStack() as stack:
        groups = {c.name: stack.enter_context(_started(c)) for c in contenders}
        for name, group in groups.items():
            for process in group:
                process.answer(name, timeout)
        seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
        for number in range(rounds):
            # Every other round goes backwards, so that nobody always follows the same one.
            order = list(groups) if number % 2 == 0 else list(reversed(groups))
            for name in order:
                for process in groups[name]:
                    process.say("go")
                answers = [process.answer(name, timeout) for process in groups[name]]
                seconds[name].append(max(a["seconds"] for a in answers))
        return seconds


@contextlib.contextmanager
def _started(contender: Contender) -> Iterator[list[_Process]]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(_held_ports(contender.workers))
        addresses = [f"127.0.0.1:{port}" for port in ports]
        group: list[_Process] = []
        stack.callback(lambda: _end(group))
        for rank in range(contender.workers):
            env = dict(os.environ)
            env.pop("TF_CONFIG", None)
            env |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(contender.workers),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(ports[0]),
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "2"),
            }
            if contender.workers > 1:
                task = {"type": "worker", "index": rank}
                env["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
            log = stack.enter_context(tempfile.TemporaryFile())
            command = list(contender.command)
            if contender.one_core_each and cores:
                command += [f"--core={cores[rank % len(cores)]}"]
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env,
            )
            process = _Process(popen, log)
            threading.Thread(target=process.read, daemon=True).start()
            group.append(process)
        yield group


def _end(group: Sequence[_Process]) -> None:
    for process in group:
        with contextlib.suppress(OSError):
            assert process.popen.stdin is not None
            process.popen.stdin.close()  # the end of its stdin is the end of its turns
    for process in group:
        try:
            process.popen.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait(timeout=30)


@contextlib.contextmanager
def _held_ports(n: int) -> Iterator[list[int]]:
    """Holds free ports (bound, not listening) that a server with SO_REUSEPORT can still take."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(n):
            held = stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("127.0.0.1", 0))
            ports.append(held.getsockname()[1])
        yield ports
