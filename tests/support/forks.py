"""Real processes that start in milliseconds: forks of one that has imported TensorFlow and Keras.

Each fork runs a script as `__main__` and ends as a Python program does: exit codes, exit handlers and
tracebacks are its own. Nothing of TensorFlow is initialised before the fork.

    python forks.py        reads one JSON object a line: {"script", "argv", "env", "log"} starts a fork
                           and answers {"pid": N}; tells {"pid": N, "code": C} for each that ends
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import runpy
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Fork", "Forks"]


@dataclass
class Fork:
    """One process."""

    name: str
    pid: int
    log: Path
    owner: Forks

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def code(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        self.owner.collect()
        return self.owner.codes.get(self.pid)

    def signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.code is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int:
        """Waits for its end; returns its code."""
        wait_for(lambda: self.code is not None, seconds, self.owner, f"the end of {self.name}")
        assert self.code is not None
        return self.code

    def wait_for(self, word: str, seconds: float = 30.0) -> None:
        """Waits until it has printed a word; it may not end before."""

        def is_there() -> bool:
            has_ended = self.code is not None
            if word in self.text:
                return True
            assert not has_ended, f"{self.name} ended without {word!r}\n{self.owner.report()}"
            return False

        wait_for(is_there, seconds, self.owner, f"{word!r} of {self.name}")


def wait_for(condition: Any, seconds: float, owner: Forks, what: str) -> None:
    from support.processes import deadline

    until = time.monotonic() + deadline(seconds)
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds} s: {what}\n{owner.report()}")
        time.sleep(0.02)


class Forks:
    """Starts forks, and ends all that are left."""

    def __init__(self) -> None:
        from support.processes import PERSISTENT, child_environment

        self.forks: list[Fork] = []
        self.codes: dict[int, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            text=True,
        )
        PERSISTENT.add(self._process.pid)
        self._pids: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(
        self, name: str, script: Path, argv: Sequence[str], env: Mapping[str, str], log: Path
    ) -> Fork:
        """Starts a fork; `log` gets what it prints."""
        from support.processes import deadline

        request = {"script": str(script), "argv": list(argv), "env": dict(env), "log": str(log)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        fork = Fork(name, self._pids.get(timeout=deadline(120)), log, self)
        self.forks.append(fork)
        return fork

    def collect(self) -> None:
        """Takes note of those that have ended."""
        with contextlib.suppress(queue.Empty):
            while True:
                pid, code = self._ended.get_nowait()
                self.codes[pid] = code

    def report(self) -> str:
        """What each has printed, and how it ended."""
        return "\n".join(
            f"---- {fork.name}: {'runs' if fork.code is None else f'code {fork.code}'}\n{fork.text}"
            for fork in self.forks
        )

    def end_all(self) -> None:
        """Kills those that are left, each by its id, and forgets all."""
        for fork in self.forks:
            with contextlib.suppress(ProcessLookupError):
                fork.signal(signal.SIGKILL)
        for fork in self.forks:
            fork.wait(10)
        self.forks.clear()

    def close(self) -> None:
        """Ends everything."""
        from support.processes import PERSISTENT

        self.end_all()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        PERSISTENT.discard(self._process.pid)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "code" in told:
                self._ended.put((told["pid"], told["code"]))
            else:
                self._pids.put(told["pid"])


def _fork_on_request() -> dict[str, Any]:
    """Serves requests; returns only in a fork, with its own request."""
    for module in ("tensorflow", "keras"):
        __import__(module)
    children: set[int] = set()
    reading, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(reading, selectors.EVENT_READ)
    pending = b""
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if reading in ready:
            os.read(reading, 1024)
            _tell_ended(children)
        if 0 not in ready:
            continue
        chunk = os.read(0, 1 << 16)
        if not chunk:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os._exit(0)
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                selector.close()
                return request
            children.add(child)
            _tell({"pid": child})


def _tell_ended(children: set[int]) -> None:
    for child in list(children):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            children.discard(child)
            _tell({"pid": child, "code": os.waitstatus_to_exitcode(status)})


def _tell(message: Mapping[str, int]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _become(request: Mapping[str, Any]) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.environ.update(request["env"])
    sys.argv = [request["script"], *request["argv"]]


if __name__ == "__main__":
    _request = _fork_on_request()
    _become(_request)
    runpy.run_path(_request["script"], run_name="__main__")
