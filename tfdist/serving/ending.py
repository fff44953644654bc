"""How the chief's process tells the others that it ends, and how it ended."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from types import TracebackType

from tfdist import exit_status, preflight
from tfdist.cluster import Cluster, Task
from tfdist.preflight.rendezvous import Identity
from tfdist.serving import mailbox

__all__ = ["announce_end", "install_end", "leave_at_once"]

_ANSWER = 5.0  # seconds for a server to confirm; the chief's end waits no longer than that
_LONGEST = 300  # characters of an error's message

_identities: dict[Cluster, Identity] = {}
_failure: str | None = None  # the exception that ended the program
_leaves_at_once = False
_installed_in: int | None = None  # a process id: a fork inherits the hooks, and is not the chief


def identity_of(cluster: Cluster) -> Identity:
    """This process as a chief: servers know it by a random token."""
    return _identities.setdefault(cluster, Identity.of(cluster))


def install_end(cluster: Cluster) -> None:
    """Makes this process tell the cluster's servers when it ends, and whether it did well.

    Well means that the program came to its end, or left with `sys.exit()` or `sys.exit(0)`.

    Args:
        cluster: the cluster; this process is its chief.
    """
    global _installed_in
    identity_of(cluster)
    if _installed_in is not None:
        return
    _installed_in = os.getpid()
    atexit.register(_announce_all)
    _note_exceptions()
    exit_status.forget()


def leave_at_once() -> None:
    """Makes this process end as soon as it has told the others, without closing TensorFlow.

    For a chief some of whose tasks are gone: TensorFlow would wait for them, for minutes or for ever,
    while it closes its connections.
    """
    global _leaves_at_once
    _leaves_at_once = True


def announce_end(cluster: Cluster, outcome: str = "done") -> None:
    """Tells the cluster's workers and ps that the job is over; they end.

    Args:
        cluster: the cluster; this process is its chief.
        outcome: "done", or how the chief failed, as words that follow "the chief".
    """
    me = identity_of(cluster)
    _identities.pop(cluster, None)
    message = {"kind": "end", "token": me.token, "cluster": me.cluster, "outcome": outcome}
    threads = [
        threading.Thread(target=_tell, args=(task, message, me), name="tfdist-end", daemon=True)
        for task in cluster.tasks()
        if task.type != "chief"
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + _ANSWER
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _tell(task: Task, message: mailbox.Message, me: Identity) -> None:
    # A look first: TensorFlow would try to reach a server that is gone for a long time.
    if not preflight.probe(task.address, me, timeout=2.0).is_tensorflow:
        return
    try:
        mailbox.ask(task, message, _ANSWER, is_last=True)
    except mailbox.Undelivered:
        return  # It notices by itself that the chief is gone.


def _announce_all() -> None:
    if os.getpid() != _installed_in:
        return
    code, outcome = _status()
    for cluster in list(_identities):
        announce_end(cluster, outcome)
    if _leaves_at_once:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _status() -> tuple[int, str]:
    """The exit code of this process, and what the servers are told."""
    if _failure is not None:
        return 1, _failure
    status = exit_status.last()
    if status is None or status == 0:
        return 0, "done"
    if isinstance(status, int):
        return status & 0xFF, f"failed: exit code {status}"
    return 1, f"failed: exit code 1 ({str(status)[:_LONGEST]})"


def _note_exceptions() -> None:
    previous = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _failure
        text = str(error).strip().splitlines()
        _failure = f"failed: {kind.__name__}{': ' + text[0][:_LONGEST] if text else ''}"
        previous(kind, error, trace)

    sys.excepthook = note
