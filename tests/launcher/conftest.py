"""Runs `tfdist run` as users do, and checks that it leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

MARK = "LAUNCHER_TEST_MARK"
TIMEOUT = 60.0


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str
    seconds: float


class Jobs:
    """Starts launchers in a folder; everything that they start carries a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex

    def script(self, source: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(source))
        return path

    def start(
        self, *words: str, env: dict[str, str] | None = None, **kwargs: object
    ) -> subprocess.Popen:
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
        return subprocess.Popen(
            [sys.executable, "-m", "tfdist", "run", *words],
            env={**os.environ, MARK: self._mark, **(env or {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            text=True,
            **kwargs,
        )

    def finish(self, launcher: subprocess.Popen, timeout: float = TIMEOUT) -> Ended:
        started = time.monotonic()
        try:
            out, err = launcher.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill_all()
            out, err = launcher.communicate()
            pytest.fail(f"the launcher did not end in {timeout} s\n{out}\n{err}")
        assert self.alive() == [], f"left behind: {self.alive()}\n{err}"
        return Ended(launcher.returncode, out, err, time.monotonic() - started)

    def run(self, *words: str, timeout: float = TIMEOUT, **kwargs: object) -> Ended:
        return self.finish(self.start(*words, **kwargs), timeout)

    def alive(self) -> list[str]:
        """The processes that carry the mark."""
        found = []
        for process in self._marked():
            with contextlib.suppress(psutil.Error):  # it ended while we looked
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        return found

    def wait_for(self, condition: Callable[[], bool], what: str, timeout: float = 20.0) -> None:
        until = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > until:
                pytest.fail(f"not within {timeout} s: {what}; alive: {self.alive()}")
            time.sleep(0.02)

    def wait_for_files(self, *names: str) -> None:
        """Waits until the scripts have written these files: they are where the test wants them."""
        paths = [self.folder / name for name in names]
        self.wait_for(lambda: all(path.exists() for path in paths), f"files {names}")

    def kill_all(self) -> None:
        for process in self._marked():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _marked(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get(MARK) == self._mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    found = Jobs(tmp_path)
    yield found
    left = found.alive()
    found.kill_all()
    assert left == []


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """A test run in the background ignores SIGINT, and so would the launchers it starts."""
    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)
