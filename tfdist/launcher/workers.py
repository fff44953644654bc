"""The running processes: one per rank, each with a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from tfdist.errors import LaunchError, explain


class Worker:
    """A worker that was started.

    It leads a session and process group of its own, so that signals reach what it started too, and
    the terminal's Ctrl-C reaches it only through the launcher. When it ends it stays a zombie until
    `reap`: as long as its number is taken, no stranger can be hit by a signal to its group.
    """

    def __init__(
        self, rank: int, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Starts the process.

        Args:
            rank: its number in the job.
            name: what messages call it.
            command: as the operating system takes it.
            environment: all its variables.

        Raises:
            LaunchError: if the operating system refuses.
        """
        self.rank = rank
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                # Several workers can't share one keyboard.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise LaunchError(
                explain(
                    f"{name[0].upper()}{name[1:]} can't be started ({reason})",
                    received=command[0],
                    fix="Check that the file is a program for this machine; a script without a "
                    "#! line needs its interpreter: tfdist run ... python SCRIPT",
                )
            ) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def take_pipes(self) -> tuple[int, int]:
        """The descriptors of its stdout and stderr, which the caller has to close."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pipes = (os.dup(self._process.stdout.fileno()), os.dup(self._process.stderr.fileno()))
        self._process.stdout.close()
        self._process.stderr.close()
        return pipes

    def signal(self, number: int) -> None:
        """Sends a signal to the worker's whole process group."""
        if self._process.returncode is not None:
            return  # its number may belong to somebody else by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def watch(self, ended: Callable[[int, int, float], None]) -> None:
        """Calls `ended(rank, returncode, time.monotonic())` from a thread when the worker ends.

        A thread of its own, blocked in the kernel's wait, sees the end at once: the order in which
        several workers end within milliseconds says which one was the cause.
        """

        def wait() -> None:
            code = self._wait()
            ended(self.rank, code, time.monotonic())

        threading.Thread(target=wait, name=f"rank-{self.rank}-wait", daemon=True).start()

    def _wait(self) -> int:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13; the zombie is lost there
            return self._process.wait()
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert result is not None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def reap(self) -> None:
        """Frees the worker's number; after this no signal may be sent."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0)
