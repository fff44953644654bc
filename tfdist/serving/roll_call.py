"""The chief's side of the start: every worker and ps is there, and is this chief's."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from tfdist import preflight
from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError, explain
from tfdist.preflight import errors
from tfdist.preflight.rendezvous import Identity
from tfdist.serving import mailbox
from tfdist.serving.ending import identity_of

__all__ = ["call_roll"]

logger = logging.getLogger(__name__)

_PAUSE = 0.3  # seconds between two questions to a task that is not there
_REPEAT = 2.0  # and to one that is, and that has to know that the chief still is, too
_ANSWER = 5.0  # seconds for an answer
_LOG_EVERY = 10.0
_NAMED = 8  # tasks named in one message


@dataclass
class _Called:
    """A task that is called."""

    task: Task
    is_there: bool = False
    is_silent: bool = False  # its server took a message and did not answer
    failure: str = "not asked yet"


def call_roll(cluster: Cluster, timeout: float) -> None:
    """Returns when every worker and ps has answered that it serves this chief.

    Args:
        cluster: the cluster; this process is its chief.
        timeout: seconds.

    Raises:
        ClusterError: a task is missing at the deadline; or, at once, a task was started with another
            cluster or at another task's address.
    """
    me = identity_of(cluster)
    called = [_Called(task) for task in cluster.tasks() if task.type != "chief"]
    changed, stop = threading.Condition(), threading.Event()
    wrong: list[ClusterError] = []

    def call(one: _Called) -> None:
        while not stop.is_set():
            try:
                failure = _call(cluster, one, me)
            except ClusterError as error:
                wrong.append(error)
                stop.set()
                failure = str(error)
            with changed:
                one.is_there, one.failure = failure is None, failure or ""
                changed.notify_all()
            stop.wait(_PAUSE if failure else _REPEAT)

    for one in called:
        threading.Thread(target=call, args=(one,), name="tfdist-roll-call", daemon=True).start()
    started = time.monotonic()
    next_log = started + _LOG_EVERY
    try:
        with changed:
            while True:
                if wrong:
                    raise wrong[0]
                missing = [one for one in called if not one.is_there]
                if not missing:
                    return
                now = time.monotonic()
                if now >= started + timeout:
                    raise _missing_error(cluster, missing, len(called), timeout)
                if now >= next_log:
                    _log(missing, now - started)
                    next_log = now + _LOG_EVERY
                changed.wait(min(started + timeout, next_log) - now)
    finally:
        stop.set()


def _call(cluster: Cluster, one: _Called, me: Identity) -> str | None:
    """Asks one task; returns why it is not there, or None.

    Raises:
        ClusterError: it is a wrong one.
    """
    task = one.task
    answer = preflight.probe(task.address, me, timeout=2.0)
    if answer.identity is not None:
        return f"{answer.identity.task} of another kind of job answers there"
    if not answer.is_tensorflow:
        return answer.failure or "unknown"
    claim = {"kind": "claim", "token": me.token, "cluster": me.cluster}
    try:
        reply = mailbox.ask(task, claim, _ANSWER)
    except mailbox.Misplaced as found:
        raise errors.misplaced(cluster, task, str(found)) from None
    except mailbox.NoAnswer:
        if not one.is_silent:
            one.is_silent = True
            return "its server is up, and has not answered yet"
        # A script's own tf.distribute.Server: it will not hear of the end.
        logger.info("%s at %s is a server without tfdist", task.name, task.address)
        return None
    except mailbox.Undelivered as error:
        return str(error)
    if reply["answer"] == "another cluster":
        raise errors.other_cluster(cluster, task.name, task.address)
    if reply["answer"] == "busy":
        return "it serves another chief, or one that is gone: then it is about to end"
    return None


def _log(missing: list[_Called], waited: float) -> None:
    for one in missing[:_NAMED]:
        logger.warning(
            "waiting for %s at %s (%.0f s): %s",
            one.task.name,
            one.task.address,
            waited,
            one.failure,
        )
    if len(missing) > _NAMED:
        logger.warning("waiting for %d more tasks", len(missing) - _NAMED)


def _missing_error(
    cluster: Cluster, missing: list[_Called], of: int, timeout: float
) -> ClusterError:
    lines = [f"{one.task.name} at {one.task.address}: {one.failure}" for one in missing[:_NAMED]]
    if len(missing) > _NAMED:
        lines.append(f"{len(missing) - _NAMED} more")
    return ClusterError(
        explain(
            f"The chief waited {timeout:g} s for {len(missing)} of {of} workers and ps",
            received="; ".join(lines),
            source=cluster.source,
            fix="Start the same script on the missing tasks, each with the same cluster and its own "
            "task; check their logs, their host names and firewalls; or wait longer with "
            "start_timeout (TFDIST_START_TIMEOUT)",
        )
    )
