"""Makes sure that every process of a cluster is there before TensorFlow waits for them.

TensorFlow blocks without a word when a peer is missing, and names no port when its own is taken.
Here each process listens in Python on its own port and asks all others, until all have answered:

    listen -> ask every peer -> every peer has asked every peer -> stop listening -> TensorFlow

A process stops listening when it has reached all peers, has heard from each that it has reached
all of its own, and has told each the same of itself. So nobody leaves while another still needs
its answer, and nobody needs an answer from one that has left.
"""

from __future__ import annotations

import socket

from tfdist.cluster import Cluster
from tfdist.cluster.check import split_address
from tfdist.preflight import errors
from tfdist.preflight.meeting import Meeting
from tfdist.preflight.rendezvous import Identity, open_socket, probe

__all__ = ["check_own_port", "listens", "probe", "wait_for_peers"]


def listens(address: str, timeout: float = 2.0) -> bool:
    """Returns whether anything listens at an address, without saying a word to it.

    Args:
        address: "host:port".
        timeout: seconds.
    """
    try:
        socket.create_connection(split_address(address), timeout=timeout).close()
    except OSError:
        return False
    return True


def check_own_port(cluster: Cluster) -> None:
    """Checks that this process's port can be used.

    Args:
        cluster: the cluster; a process without an address needs no port.

    Raises:
        ClusterError: the port is in use or may not be used, or this task is already running.
    """
    if cluster.address is None:
        return
    port = split_address(cluster.address)[1]
    me = Identity.of(cluster)
    # A socket that listens with SO_REUSEPORT does not keep another from binding: ask for it.
    answer = probe(f"127.0.0.1:{port}", me, timeout=2.0)
    if answer.identity is not None:
        raise errors.stranger(cluster, me, answer.identity)
    if answer.is_tensorflow:
        raise errors.port_in_use(cluster, port, "a TensorFlow server")
    try:
        open_socket("", port).close()
    except OSError as error:
        raise errors.cannot_bind(cluster, port, error) from None
    if not answer.is_refused:
        raise errors.port_in_use(cluster, port, "another program")


def wait_for_peers(
    cluster: Cluster,
    timeout: float,
    log_every: float = 10.0,
    *,
    for_tensorflow: bool = True,
) -> None:
    """Returns when every process of the cluster is there, has been reached, and reaches all others.

    Args:
        cluster: the cluster of this process; alone in it, there is nothing to wait for.
        timeout: seconds after which the wait is given up.
        log_every: seconds between two lines that say who is waited for and why.
        for_tensorflow: the processes start TensorFlow servers on the same ports next. Then all
            wait for the server of the first task, which the others' servers connect to.

    Raises:
        ClusterError: a peer is missing or unreachable at the deadline; or, at once, a process was
            started with another cluster, on another task's address, or as the same task.
    """
    if cluster.address is None or len(cluster.tasks()) < 2:
        return
    meeting = Meeting(cluster, timeout, log_every)
    try:
        meeting.wait(meeting.all_met)
        if for_tensorflow:
            meeting.wait(meeting.leader_serves)
    finally:
        meeting.close()
