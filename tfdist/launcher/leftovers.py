"""Every process of a job, wherever it went.

A worker's children usually stay in its process group, and go with it. Some don't: a daemon starts a
session of its own, and its parent may have ended before. Each process of the job inherits one
variable with a random token, and that is found in any of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

JOB_VARIABLE = "TFDIST_JOB"

# A process may fork while its ancestors are being ended: look again, but not for ever.
_ROUNDS = 10


def find(token: str) -> list[psutil.Process]:
    """The living processes of this user that belong to the job `token`."""
    found = []
    for process in psutil.process_iter():
        try:
            jobs = process.environ().get(JOB_VARIABLE, "").split("/")
            if token in jobs and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError, UnicodeError):
            continue
    return found


def end(token: str, grace: float) -> list[str]:
    """Ends every process of the job that is still there.

    Args:
        token: the job's.
        grace: seconds between SIGTERM and SIGKILL; 0 kills at once.

    Returns:
        One "name (pid N)" for each process that had to be ended.
    """
    ended = []
    for _ in range(_ROUNDS):
        processes = find(token)
        if not processes:
            break
        ended += [_describe(process) for process in processes]
        if grace > 0:
            _each(processes, "terminate")
            _, processes = psutil.wait_procs(processes, timeout=grace)
        _each(processes, "kill")
        psutil.wait_procs(processes, timeout=1.0)
        grace = 0
    return ended


def end_without_launcher(token: str) -> None:
    """Like `end`, after the launcher was killed, perhaps at the moment it started a process.

    That process shows the launcher's environment until it has become the worker, so a second look
    is due.
    """
    end(token, grace=0)
    time.sleep(0.2)
    end(token, grace=0)


def _each(processes: Iterable[psutil.Process], method: str) -> None:
    for process in processes:
        try:
            getattr(process, method)()
        except psutil.Error:
            continue


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.name()} (pid {process.pid})"
    except psutil.Error:
        return f"pid {process.pid}"
