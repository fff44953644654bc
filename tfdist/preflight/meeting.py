"""One process's side of the rendezvous that `tfdist.preflight` describes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tfdist.cluster import Cluster, Task
from tfdist.cluster.check import split_address
from tfdist.errors import ClusterError, explain
from tfdist.preflight import errors
from tfdist.preflight.rendezvous import Answer, Identity, Listener, bind_host, open_socket, probe

__all__ = ["Meeting"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05  # seconds between two questions to a peer, doubled up to the longest
_LONGEST_PAUSE = 1.0
_SELF_CHECKS = 8  # a twin on this port gets each connection with a chance of one half
_NAMED = 8  # peers named in one message


@dataclass
class _Peer:
    """What is known of another process."""

    task: Task
    failure: str = "not asked yet"
    answered: bool = False  # this process has reached it
    complete: bool = False  # it has reached everybody, as it says itself
    told: bool = False  # it knows that this process has reached everybody
    serves: bool = False  # it runs a TensorFlow server

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to be learnt from it, or told to it."""
        return self.answered and self.complete and self.told


class Meeting:
    """One process's side of the rendezvous: a listener, and a thread that asks each peer."""

    def __init__(self, cluster: Cluster, timeout: float, log_every: float) -> None:
        self._cluster = cluster
        self._timeout = timeout
        self._log_every = log_every
        self._started = time.monotonic()
        self._next_log = self._started + log_every
        self._me = Identity.of(cluster)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._error: ClusterError | None = None
        self._is_only_one = False  # nobody else was started as this task
        self._is_leader = cluster.tasks()[0].name == cluster.task_name
        self._peers = [_Peer(task) for task in cluster.tasks() if task.name != cluster.task_name]
        port = split_address(cluster.address or "")[1]
        try:
            bound = open_socket(bind_host(cluster), port)
        except OSError as error:
            raise errors.cannot_bind(cluster, port, error) from None
        self._listener = Listener(bound, self._identity, self._meet)
        self._threads = [
            threading.Thread(target=self._ask, args=(peer,), name="tfdist-peer", daemon=True)
            for peer in self._peers
        ]
        self._threads.append(
            threading.Thread(target=self._ask_myself, name="tfdist-self", daemon=True)
        )
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops the threads and frees the port."""
        self._stop.set()
        self._listener.close()
        deadline = time.monotonic() + 0.5
        for thread in self._threads:
            # One that still looks up a name can't be stopped; it holds nothing and ends by itself.
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def all_met(self) -> list[_Peer]:
        """The peers that are not done with the rendezvous; those still at it block the return."""
        if not self._is_only_one:
            return self._peers
        return [peer for peer in self._peers if not peer.is_done]

    def leader_serves(self) -> list[_Peer]:
        """The first task, as long as its TensorFlow server is not there.

        All TensorFlow servers register with it and wait for it, silently; and a connection to a
        port that still has this listener would cost them a retry.
        """
        leader = self._peers[0]
        return [] if self._is_leader or leader.serves else [leader]

    def wait(self, late: Callable[[], list[_Peer]]) -> None:
        """Waits until the list of late peers is empty.

        Args:
            late: lists the peers that are waited for.

        Raises:
            ClusterError: at the deadline, or as soon as a process is found to be a wrong one.
        """
        deadline = self._started + self._timeout
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                waiting = late()
                if not waiting:
                    return
                now = time.monotonic()
                if now >= deadline:
                    raise self._timeout_error(waiting)
                if now >= self._next_log:
                    self._log(waiting, now - self._started)
                    self._next_log += self._log_every
                self._changed.wait(min(deadline, self._next_log) - now)

    def _identity(self) -> Identity:
        waiting = tuple(peer.task.name for peer in self._peers if not peer.answered)
        return replace(self._me, waiting=waiting)

    def _ask(self, peer: _Peer) -> None:
        """Asks one peer until nothing more is to be learnt or told; the leader, until it serves."""
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            me = self._identity()
            answer = probe(peer.task.address, me)
            with self._changed:
                before = (peer.answered, peer.complete, peer.told)
                self._note(peer, answer, am_complete=not me.waiting)
                after = (peer.answered, peer.complete, peer.told)
                self._changed.notify_all()
                is_awaited = not self._is_leader and peer is self._peers[0]
                if self._error or peer.serves or (peer.is_done and not is_awaited):
                    return
            # Somebody who is there deserves quick answers: what is left is a matter of moments.
            longest = _LONGEST_PAUSE if not peer.answered else 4 * _FIRST_PAUSE
            pause = _FIRST_PAUSE if after != before else min(2 * pause, longest)
            self._stop.wait(pause)

    def _note(self, peer: _Peer, answer: Answer, *, am_complete: bool) -> None:
        """Takes note of a peer's answer."""
        identity = answer.identity
        if answer.is_tensorflow:
            peer.answered = peer.complete = peer.told = peer.serves = True
        elif identity is None:
            peer.failure = answer.failure or "unknown"
            # One that was complete and is gone had nothing left to learn.
            peer.told |= am_complete and peer.complete and answer.is_refused
        elif identity.cluster != self._me.cluster:
            self._fail(errors.other_cluster(self._cluster, peer.task.name, peer.task.address))
        elif identity.task != peer.task.name:
            self._fail(errors.misplaced(self._cluster, peer.task, identity.task))
        else:
            peer.answered = True
            peer.told |= am_complete
            self._note_state(peer, identity)

    def _note_state(self, peer: _Peer, identity: Identity) -> None:
        peer.complete |= not identity.waiting
        names = ", ".join(identity.waiting[:_NAMED])
        peer.failure = f"it is up, and waits for {names}" if names else "it is up, and starts"

    def _meet(self, visitor: Identity) -> None:
        """Another process has introduced itself at this one's port."""
        if visitor.token == self._me.token:
            return
        with self._changed:
            if visitor.cluster != self._me.cluster:
                self._fail(errors.other_cluster(self._cluster, visitor.task, None))
            elif visitor.task == self._me.task:
                self._fail(errors.twins(self._cluster))
            for peer in self._peers:
                if peer.task.name == visitor.task:
                    self._note_state(peer, visitor)
            self._changed.notify_all()

    def _ask_myself(self) -> None:
        """Looks for a second process that listens on this one's address."""
        checks = 0
        while not self._stop.is_set():
            answer = probe(self._cluster.address or "", self._me, timeout=2.0)
            with self._changed:
                if answer.identity is not None and answer.identity.token != self._me.token:
                    self._fail(errors.stranger(self._cluster, self._me, answer.identity))
                elif answer.is_tensorflow:
                    self._fail(errors.twins(self._cluster))
                # Not every network leads a host back to its own public address; that is no fault.
                checks += 1 if answer.identity is not None else _SELF_CHECKS
                self._is_only_one = checks >= _SELF_CHECKS
                self._changed.notify_all()
            if self._is_only_one:
                self._stop.wait(0.5)

    def _fail(self, error: ClusterError) -> None:
        self._error = self._error or error

    def _log(self, late: list[_Peer], waited: float) -> None:
        late = _causes(late)
        for peer in late[:_NAMED]:
            logger.warning(
                "waiting for %s at %s (%.0f s): %s",
                peer.task.name,
                peer.task.address,
                waited,
                peer.failure,
            )
        if len(late) > _NAMED:
            logger.warning("waiting for %d more tasks", len(late) - _NAMED)

    def _timeout_error(self, late: list[_Peer]) -> ClusterError:
        late = _causes(late)
        lines = [
            f"{peer.task.name} at {peer.task.address}: {peer.failure}" for peer in late[:_NAMED]
        ]
        if len(late) > _NAMED:
            lines.append(f"{len(late) - _NAMED} more")
        return ClusterError(
            explain(
                f"{self._cluster.task_name} waited {self._timeout:g} s for {len(late)} of "
                f"{len(self._peers)} other tasks of the cluster",
                received="; ".join(lines),
                source=self._cluster.source,
                fix="Start the missing processes, each with the same cluster and its own task; "
                "check their logs, their host names and firewalls; or wait longer with "
                "start_timeout (TFDIST_START_TIMEOUT)",
            )
        )


def _causes(late: list[_Peer]) -> list[_Peer]:
    """The peers that were not reached; where all were, those that did not reach all of theirs."""
    return [peer for peer in late if not peer.answered] or late
