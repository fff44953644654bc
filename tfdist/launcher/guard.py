"""Ends the job if the launcher dies without a chance to do it itself (SIGKILL, out of memory).

A small process that does nothing but wait at a pipe which only the launcher holds open: the kernel
closes it however the launcher ends. Chosen over the alternatives because it

- reaches grandchildren: Linux's PR_SET_PDEATHSIG kills a worker, but not what the worker started;
- runs no Python between fork and exec of a worker (`preexec_fn` may deadlock, and is slow);
- costs no start of an interpreter, per worker or at all: it is a fork of the launcher, made while
  that has one thread and holds no port;
- works on every POSIX system.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tfdist.launcher import leftovers

_DONE = "done"


class Guard:
    """The launcher's end of the pipe."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe = pipe

    def watch(self, group: int) -> None:
        """Adds a worker's process group to what has to go with the launcher."""
        self._send(str(group))

    def dismiss(self, done: bool) -> None:
        """Lets the guard go, after it has ended the job unless that is `done`; waits for it."""
        if done:
            self._send(_DONE)
        os.close(self._pipe)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _send(self, word: str) -> None:
        with suppress(OSError):  # somebody ended the guard; the job goes on without
            os.write(self._pipe, f"{word}\n".encode())


@contextmanager
def guarded(token: str) -> Iterator[Guard]:
    """Runs a guard over the job `token` for as long as the context lasts.

    If the context is left by an exception, the guard ends what the job still has.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(writing)
            _stand_watch(reading, token)
            status = 0
        finally:
            os._exit(status)
    os.close(reading)
    guard = Guard(pid, writing)
    done = False
    try:
        yield guard
        done = True
    finally:
        guard.dismiss(done)


def _stand_watch(pipe: int, token: str) -> None:
    os.setsid()  # out of the reach of the terminal's Ctrl-C, and of a kill of the launcher's group
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Whoever reads the launcher's output must not wait for the guard.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    with os.fdopen(pipe) as words:
        received = words.read().split()
    if _DONE in received:
        return
    for group in received:
        with suppress(OSError):
            os.killpg(int(group), signal.SIGKILL)
    leftovers.end_without_launcher(token)
