"""Finds what a test left behind: environment variables, processes, threads."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

import psutil
from support.processes import PERSISTENT

__all__ = ["Snapshot", "leaks"]

# Importing TensorFlow, Keras or h5py sets these, once per process; pytest changes its own for every test.
_HOSTS_OWN = ("PYTEST_", "TF2_BEHAVIOR", "TPU_ML_", "KMP_", "HDF5_", "ENABLE_RUNTIME_", "KERAS_")
_PATIENCE = 2.0


@dataclass(frozen=True)
class Snapshot:
    """The state of this process that a test has to leave as it found it."""

    environment: dict[str, str]
    children: frozenset[int]
    threads: frozenset[int]

    @classmethod
    def take(cls) -> Snapshot:
        """Returns the present state."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_HOSTS_OWN)}
        threads = frozenset(t.ident or 0 for t in threading.enumerate() if not t.daemon)
        return cls(environment, frozenset(_children()), threads)


def _children() -> dict[int, str]:
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
    persistent = PERSISTENT & found.keys()
    for pid in persistent:
        for child in psutil.Process(pid).children(recursive=True):
            found.pop(child.pid, None)
        del found[pid]
    return found


def leaks(before: Snapshot) -> list[str]:
    """Returns one line per thing that is here now and was not in `before`.

    What is just ending gets a moment: a killed process takes a few milliseconds to disappear.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        found = _compare(before)
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.05)


def _compare(before: Snapshot) -> list[str]:
    now = Snapshot.take()
    found = []
    for name in sorted(before.environment.keys() | now.environment.keys()):
        was, now_is = before.environment.get(name), now.environment.get(name)
        if was != now_is:
            found.append(f"environment variable {name}: was {was!r}, is {now_is!r}")
    children = _children()
    for pid in sorted(children.keys() - before.children):
        found.append(f"child process {pid}: {children[pid]}")
    for thread in threading.enumerate():
        if not thread.daemon and (thread.ident or 0) not in before.threads:
            found.append(f"thread {thread.name} (not a daemon)")
    return found
