"""Small agreements between the workers of a job, outside of any training step.

They go through the key-value store of TensorFlow's coordination service, which
MultiWorkerMirroredStrategy starts anyway: unlike a collective, a missing worker is noticed at a
deadline, is named, and leaves the process usable. On one worker every function returns at once.
"""

from __future__ import annotations

import collections
import contextlib
import time
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from tfdist.errors import ClusterError, explain
from tfdist.strategies.marker import marker_of

__all__ = ["abort", "barrier", "exchange", "peek", "peer_failures", "publish"]

_PREFIX = "tfdist"
_SLICE = 1.0  # seconds between two looks at the health of the others
# How often each name was used: every worker counts alike, since all run the same program.
_uses: collections.Counter[str] = collections.Counter()


def exchange(strategy: Any, name: str, text: str, timeout: float = 60.0) -> list[str]:
    """Gives every worker the text of each.

    All workers must call it, in the same order for one name.

    Args:
        strategy: a tfdist strategy.
        name: what is agreed on, for the error message.
        text: this worker's part; keep it below a few kilobytes.
        timeout: how long to wait for the others, in seconds.

    Returns:
        The texts by rank.

    Raises:
        ClusterError: if a worker's text did not arrive in time, or a worker has failed.
    """
    marker = marker_of(strategy)
    if marker is None or marker.num_workers == 1:
        return [text]
    _uses[name] += 1
    key = f"{_PREFIX}/exchange/{name}/{_uses[name]}"
    _set(f"{key}/{marker.rank}", text)
    deadline = time.monotonic() + timeout
    found = {marker.rank: text}
    while len(found) < marker.num_workers:
        _collect(found, key, marker.num_workers, deadline)
        if len(found) == marker.num_workers or time.monotonic() >= deadline:
            break
        failures = peer_failures(strategy)
        if failures:
            raise ClusterError(next(iter(failures.values())))
    missing = [rank for rank in range(marker.num_workers) if rank not in found]
    if missing:
        # The next call is this one again, so that a worker that comes late is not a call behind.
        _uses[name] -= 1
        _delete(f"{key}/{marker.rank}")
        names = ", ".join(f"worker {rank}" for rank in missing)
        error = ClusterError(
            explain(
                f"{names} did not take part in '{name}' within {timeout:.0f} s",
                received=f"{marker.num_workers - len(missing)} of {marker.num_workers} workers",
                fix="Run the same calls on every worker; look at the missing worker's log",
            )
        )
        error.missing = tuple(missing)
        raise error
    return [found[rank] for rank in range(marker.num_workers)]


def barrier(strategy: Any, name: str, timeout: float = 60.0) -> None:
    """Returns when every worker has called it.

    Args:
        strategy: a tfdist strategy.
        name: what is waited for, for the error message.
        timeout: how long to wait for the others, in seconds.

    Raises:
        ClusterError: if a worker did not come in time, or has failed.
    """
    exchange(strategy, name, "", timeout)


def publish(strategy: Any, key: str, text: str) -> None:
    """Leaves a text for the other workers under `key`; the first text of a key stays.

    Args:
        strategy: a tfdist strategy; nothing happens on one worker.
        key: a name that the others know.
        text: at most a few kilobytes.
    """
    marker = marker_of(strategy)
    if marker is None or marker.num_workers == 1:
        return
    with contextlib.suppress(tf.errors.AlreadyExistsError):
        context.context().set_config_key_value(f"{_PREFIX}/{key}", text)


def peek(strategy: Any, key: str, timeout: float = 0.1) -> str | None:
    """Returns the text that a worker published under `key`, or None.

    Args:
        strategy: a tfdist strategy.
        key: a name that the publisher used.
        timeout: how long to wait for it, in seconds.
    """
    marker = marker_of(strategy)
    if marker is None or marker.num_workers == 1:
        return None
    return _get(f"{_PREFIX}/{key}", timeout)


def abort(strategy: Any, message: str) -> None:
    """Ends the collectives that the other workers are waiting in, at once, with `message`.

    Stands in for a public call; without it the others notice a lost peer after about ten seconds.
    The processes can't use collectives any more afterwards.

    Args:
        strategy: a tfdist strategy; nothing happens on one worker.
        message: what every other worker's error says.
    """
    marker = marker_of(strategy)
    if marker is None or marker.num_workers == 1:
        return
    with contextlib.suppress(tf.errors.OpError, ValueError):
        context.context().report_error_to_cluster(tf.errors.ABORTED, message)


def peer_failures(strategy: Any) -> dict[int, str]:
    """Returns one line for each other worker that is known to have failed, by rank.

    Stands in for a public query of the coordination service: a worker that was killed is known
    after about ten seconds without a heartbeat, one that called `abort` at once.

    Args:
        strategy: a tfdist strategy.
    """
    marker = marker_of(strategy)
    if marker is None or marker.num_workers == 1:
        return {}
    jobs = [(job, len(marker.cluster.jobs.get(job, ()))) for job in ("chief", "worker")]
    try:
        states = context.context().get_task_states([job for job in jobs if job[1]])
    except tf.errors.OpError:
        return {} if marker.is_chief else {0: _ended(0)}
    return {
        rank: state.message if state.message.startswith("worker ") else _ended(rank)
        for rank, state in enumerate(states)
        if state is not None and rank != marker.rank
    }


def _ended(rank: int) -> str:
    return explain(
        f"worker {rank} ended without a word: it was killed, or its host or connection is gone",
        fix="Look at the end of its log; this worker can't go on and has to be restarted too",
    )


def _collect(found: dict[int, str], key: str, num_workers: int, deadline: float) -> None:
    """Adds the texts that are there, waiting a moment for the first that is not."""
    for rank in range(num_workers):
        if rank not in found:
            left = deadline - time.monotonic()
            value = _get(f"{key}/{rank}", max(min(left, _SLICE), 0.001))
            if value is None:
                return
            found[rank] = value


def _set(key: str, text: str) -> None:
    """Writes a key; raises ClusterError when the coordination service has gone."""
    try:
        context.context().set_config_key_value(key, text)
    except tf.errors.OpError as error:
        raise ClusterError(
            explain(
                "The coordination service of the cluster does not answer; the chief has ended or "
                "a worker has failed",
                received=error.message.splitlines()[0],
                fix="Look at the log of the worker that ended first",
            )
        ) from None


def _delete(key: str) -> None:
    with contextlib.suppress(tf.errors.OpError):
        context.context().delete_config_key_value(key)


def _get(key: str, timeout: float) -> str | None:
    """Reads a key; None when it did not appear in time or the service has gone."""
    try:
        return context.context().get_config_key_value(
            key, timeout_in_ms=max(int(timeout * 1000), 1)
        )
    except (
        tf.errors.DeadlineExceededError,
        tf.errors.NotFoundError,
        tf.errors.UnavailableError,
        tf.errors.CancelledError,
        tf.errors.InternalError,
    ):
        return None
