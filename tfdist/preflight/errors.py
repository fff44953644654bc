"""The errors of `tfdist.preflight`: ports in use, and processes that are not who they should be."""

from __future__ import annotations

import errno
import os
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.cluster.check import split_address
from tfdist.errors import ClusterError, explain
from tfdist.preflight.rendezvous import Identity

__all__ = ["cannot_bind", "misplaced", "other_cluster", "port_in_use", "stranger", "twins"]


def port_in_use(cluster: Cluster, port: int, by: str) -> ClusterError:
    """This task's port is taken, by a kind of program."""
    return ClusterError(
        explain(
            f"Port {port} on this host is in use by {by}{_owner(port)}; "
            f"{cluster.task_name} needs it",
            received=cluster.address,
            source=cluster.source,
            fix="End that process, or give this task another port, in the cluster of every task",
        )
    )


def _owner(port: int) -> str:
    """The process that listens on the port, as " (pid N, name)", where the system tells."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            local: Any = connection.laddr
            is_listener = connection.status == psutil.CONN_LISTEN and local
            if is_listener and local.port == port and connection.pid:
                return f" (pid {connection.pid}, {psutil.Process(connection.pid).name()})"
    except (psutil.Error, OSError, RuntimeError):
        pass
    return ""


def cannot_bind(cluster: Cluster, port: int, error: OSError) -> ClusterError:
    """This task's port can't be bound."""
    if error.errno == errno.EADDRINUSE:
        return port_in_use(cluster, port, "another program")
    return ClusterError(
        explain(
            f"{cluster.task_name} may not use port {port}: {os.strerror(error.errno or 0)}",
            received=cluster.address,
            source=cluster.source,
            fix="Give it a port above 1023, in the cluster of every task",
        )
    )


def stranger(cluster: Cluster, me: Identity, other: Identity) -> ClusterError:
    """Another tfdist process listens on this task's address."""
    if other.cluster == me.cluster and other.task == me.task:
        return twins(cluster)
    if other.cluster == me.cluster:
        own = Task(cluster.task_type or "", cluster.task_index, cluster.address or "")
        return misplaced(cluster, own, other.task)
    port = split_address(cluster.address or "")[1]
    return port_in_use(cluster, port, f"{other.task} of another tfdist job")


def twins(cluster: Cluster) -> ClusterError:
    """A second process was started as this task."""
    return ClusterError(
        explain(
            f"Two processes were both started as {cluster.task_name}",
            received=f"address {cluster.address}",
            source=cluster.source,
            fix="Give each process its own task index in TF_CONFIG, from 0 on",
        )
    )


def misplaced(cluster: Cluster, task: Task, answered: str) -> ClusterError:
    """A task's address belongs to another task's process."""
    return ClusterError(
        explain(
            f"The address of {task.name} is answered by {answered}",
            received=task.address,
            source=cluster.source,
            fix="Start each task on the host whose address the cluster gives it",
        )
    )


def other_cluster(cluster: Cluster, name: str, address: str | None) -> ClusterError:
    """A task has another description of the cluster."""
    at = f" at {address}" if address else ""
    return ClusterError(
        explain(
            f"{name}{at} was started with another TF_CONFIG than {cluster.task_name}",
            received=f"this task's cluster: {cluster.to_tf_config()[:300]}",
            source=cluster.source,
            fix="Give every task the same `cluster`, with the addresses in the same order; only "
            "`task` differs",
        )
    )
