"""Runs other programs, and waits for anything, with a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Output", "each_within", "run", "within"]

T = TypeVar("T")
_LONGEST = 1_000_000  # characters; a program that prints without end is cut off


@dataclass(frozen=True)
class Output:
    """What a program left behind; `code` None when it could not be started or did not end in time."""

    code: int | None
    stdout: str
    stderr: str


def run(command: Sequence[str], environ: Mapping[str, str], timeout: float) -> Output:
    """Runs a program in a session of its own, and ends all of it at the deadline.

    Args:
        command: the program and its arguments.
        environ: its environment.
        timeout: seconds.
    """
    try:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Output(None, "", f"can't be run: {error.strerror}")
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
        return Output(None, "", f"no answer within {timeout:g} s")
    return Output(process.returncode, stdout[:_LONGEST], stderr[-_LONGEST:])


def within(seconds: float, function: Callable[..., T], *arguments: Any) -> tuple[T | None, bool]:
    """Calls a function that may block for ever: a name server, a file system that is gone.

    Args:
        seconds: how long to wait. Then the thread is left to itself.
        function: what to call.
        *arguments: its arguments.

    Returns:
        Its value and True; or None and False if it did not end in time.

    Raises:
        Exception: whatever the function raised.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function(*arguments))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, name=f"doctor-{function.__name__}", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return (results[0], True) if results else (None, False)


def each_within(seconds: float, function: Callable[[str], T], items: Sequence[str]) -> dict[str, T]:
    """Calls a function that may block for every item at once.

    Args:
        seconds: how long to wait for all of them.
        function: what to call; it raises nothing.
        items: its argument in each call.

    Returns:
        The values of the calls that ended in time.
    """
    results: dict[str, T] = {}

    def call(item: str) -> None:
        results[item] = function(item)

    threads = [
        threading.Thread(target=call, args=(item,), name="doctor-each", daemon=True)
        for item in dict.fromkeys(items)
    ]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(results)
