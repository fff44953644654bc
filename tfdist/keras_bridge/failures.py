"""One readable line on every worker when one of them fails.

Without this a worker that raises in a callback shows its error, and the others a long
UnavailableError about heartbeats ten seconds later (tensorflow issue 58434). Here the failing
worker tells the coordination service, which ends the collective that the others are waiting in:

    worker 1    ValueError: user bug                       (its own traceback)
    worker 0    ClusterError: worker 1 failed: ValueError: user bug
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.errors import ClusterError, TfdistError, explain
from tfdist.keras_bridge import nan_guard

__all__ = ["end_of_run", "explain_peer_failure", "report_failure", "shared", "summary"]

logger = logging.getLogger(__name__)

_END = 600.0  # seconds: how long workers may differ in what they do after the last step
_SAME_FAILURE = 5.0  # seconds: how far apart workers may fail and still count as failing alike
_NOTICE = 15.0  # seconds: by then the coordination service has missed a dead worker's heartbeats

# What a collective raises when a peer is gone. Other errors of TensorFlow are this worker's own.
_PEER_ERRORS = (tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.UnavailableError)
_PREAMBLE = ("Graph execution error", "Detected at node", "File ", "Stack trace for op")


@contextlib.contextmanager
def shared(strategy: Any) -> Iterator[None]:
    """Runs work that all workers do together, such as `fit`, and explains its failures.

    Args:
        strategy: a tfdist strategy; nothing is changed on one worker.

    Raises:
        ClusterError: if the block failed because another worker did.
    """
    try:
        yield
    except BaseException as error:
        explain_peer_failure(strategy, error)
        try:
            nan_guard.explain_nan(error)
        except TfdistError as explained:
            report_failure(strategy, explained)
            raise
        report_failure(strategy, error)
        raise


def report_failure(strategy: Any, error: BaseException) -> None:
    """Tells the other workers that this one fails, unless all of them fail alike.

    A mistake that every worker makes, such as a wrong argument of `fit`, is raised on each and
    leaves the processes usable; the failure of some ends the others' collectives for good.

    Args:
        strategy: a tfdist strategy; nothing happens on one worker.
        error: what this worker raises.
    """
    marker = strategy.tfdist
    if marker.num_workers == 1:
        return
    line = f"worker {marker.rank} failed: {summary(error)}"
    try:
        marker.exchange("failure", line, _SAME_FAILURE)
    except ClusterError:
        logger.debug("Ending the collectives of the other workers: %s", line)
        marker.abort(line)


def explain_peer_failure(strategy: Any, error: BaseException) -> None:
    """Raises a one-line error in the place of `error` when that came from another worker.

    Args:
        strategy: a tfdist strategy.
        error: what a collective, or an agreement between workers, raised here.

    Raises:
        ClusterError: "worker 1 failed: ValueError: ...", or that worker 1 ended without a word.
    """
    marker = strategy.tfdist
    if marker.num_workers == 1:
        return
    lost = isinstance(error, _PEER_ERRORS)
    until = time.monotonic() + (_NOTICE if lost else 0.0)
    failures = marker.peer_failures()
    while not failures and time.monotonic() < until:
        time.sleep(0.25)
        failures = marker.peer_failures()
    if failures:
        logger.debug("Another worker's failure ended a call here: %s", error)
        raise ClusterError("; ".join(failures[rank] for rank in sorted(failures))) from None
    if lost:
        raise ClusterError(
            explain(
                "The connection to another worker was lost in the middle of a step",
                received=summary(error),
                fix="Look at the end of the other workers' logs, and restart all of them",
            )
        ) from error


def end_of_run(strategy: Any, name: str = "the end of fit", timeout: float = _END) -> None:
    """Waits for all workers at the end of a run, so that none leaves while others still need it.

    Args:
        strategy: a tfdist strategy; returns at once on one worker.
        name: what ends, for the error message.
        timeout: how long to wait, in seconds.

    Raises:
        ClusterError: if a worker does not arrive, or has failed.
    """
    strategy.tfdist.barrier(name, timeout)


def summary(error: BaseException, limit: int = 300) -> str:
    """Returns an error as one line of at most `limit` characters, such as "ValueError: bug"."""
    lines = [line.strip() for line in str(error).splitlines()]
    # TensorFlow writes where an operation was made before it says what went wrong there.
    lines = [line for line in lines if line and not line.startswith(_PREAMBLE)]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."
