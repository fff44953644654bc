"""What a process of a parameter server cluster does, by its role."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn

from tfdist.cluster import Cluster
from tfdist.errors import ClusterError, ConfigError, explain

__all__ = ["check_backup_workers", "check_cluster", "serve", "take_role"]

_START_TIMEOUT = 300.0  # seconds
_NEEDED = ("chief", "worker", "ps")


def take_role(cluster: Cluster, start_timeout: float | None = None) -> None:
    """Serves where this task is a worker or ps; on the chief, makes sure that all others are there.

    Args:
        cluster: the cluster.
        start_timeout: how long to wait for other tasks, in seconds; TFDIST_START_TIMEOUT or 300 when
            None.

    Raises:
        ClusterError: the cluster has no chief, worker or ps, this task's port is in use, or (on the
            chief) a task does not answer in time.
        ConfigError: TFDIST_START_TIMEOUT is no number.
        SystemExit: on a worker or ps, at the end of the job.
    """
    check_cluster(cluster)
    timeout = _timeout(start_timeout)
    if cluster.task_type in ("worker", "ps"):
        serve(cluster, timeout)
    if cluster.task_type == "chief":
        from tfdist import preflight
        from tfdist.serving import ending, roll_call

        preflight.check_own_port(cluster)
        ending.install_end(cluster)
        roll_call.call_roll(cluster, timeout)


def serve(cluster: Cluster, start_timeout: float | None = None, devices: object = None) -> NoReturn:
    """Serves as this cluster's worker or ps until the job is over.

    Args:
        cluster: the cluster.
        start_timeout: how long the chief may take to come, in seconds, as for `take_role`.
        devices: a `tfdist.devices.Plan`; None leaves TensorFlow's own choice.

    Raises:
        ClusterError: this task's port is in use.
        SystemExit: always: with 0 when the chief has finished, 1 when it failed, died or never came,
            130 after Ctrl-C.
    """
    from tfdist.serving import server

    code = server.run(cluster, _timeout(start_timeout), devices)
    atexit.register(_leave, code)
    raise SystemExit(code)


def _leave(code: int) -> None:
    """Ends the process when all other exit handlers have run.

    To take Python and TensorFlow apart takes seconds, in which the port would still be answered, by a
    server that nobody is behind.
    """
    atexit.unregister(_leave)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)


def check_cluster(cluster: Cluster) -> None:
    """Refuses a cluster that can't train with parameter servers.

    Raises:
        ClusterError: it has no chief, no worker or no ps.
    """
    missing = [role for role in _NEEDED if not cluster.jobs.get(role)]
    if missing:
        raise ClusterError(
            explain(
                "Parameter servers need a cluster with a chief, workers and ps: the chief runs the "
                "program, the workers do its steps",
                received=f"no task of role {', '.join(missing)}",
                source=cluster.source,
                fix="Start it with `tfdist run --workers 2 --ps 1 script.py`, or name a chief, workers "
                "and ps in TF_CONFIG",
            )
        )


def check_backup_workers(cluster: Cluster, synchronous: bool, backup_workers: int) -> None:
    """Refuses to leave out gradients where nobody waits for them, or all of them.

    Args:
        cluster: the cluster.
        synchronous: whether a step is done by all workers together.
        backup_workers: how many of its gradients a step may leave out.

    Raises:
        ConfigError: steps are asynchronous, or no worker is left.
    """
    workers = len(cluster.jobs.get("worker", ()))
    if backup_workers and not synchronous:
        raise ConfigError(
            explain(
                "Backup workers are those that a synchronous step does not wait for",
                received=f"backup_workers={backup_workers}, synchronous=False",
                fix="Set synchronous=True, or leave backup_workers at 0",
            )
        )
    if workers and backup_workers >= workers:
        raise ConfigError(
            explain(
                "A step needs the gradient of one worker at least",
                received=f"backup_workers={backup_workers}, {workers} workers",
                fix=f"Set backup_workers to at most {workers - 1}",
            )
        )


def _timeout(value: float | None) -> float:
    if value is not None:
        return value
    text = os.environ.get("TFDIST_START_TIMEOUT", "")
    try:
        return float(text) if text else _START_TIMEOUT
    except ValueError:
        raise ConfigError(
            explain(
                "The start timeout must be a number of seconds",
                received=repr(text),
                source="environment TFDIST_START_TIMEOUT",
                fix="Set it to a number such as 300",
            )
        ) from None
