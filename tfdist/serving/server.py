"""What a worker or ps does: it serves, and ends with the job."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Any

from tfdist import preflight
from tfdist.cluster import Cluster, Task
from tfdist.cluster.check import split_address
from tfdist.errors import ClusterError
from tfdist.preflight.rendezvous import Identity
from tfdist.serving.mailbox import Mailbox, Message
from tfdist.serving.watch import ChiefWatch

__all__ = ["run", "session_config"]

logger = logging.getLogger(__name__)

_PERIOD = 0.5  # seconds between two looks at the chief
_LOG_EVERY = 10.0  # seconds between two lines that say what is waited for
# A job that was started again, while the servers of the run before have still to notice its end: that
# takes four seconds, or half a minute if the chief had hardly come (see ChiefWatch).
_OLD_SERVER = 45.0
# A server that goes before the chief's process has gone would make TensorFlow complain there.
_CHIEF_LEAVES = 10.0
# Parameter servers wait in operations for one another's results; too few threads make a deadlock.
_FEWEST_THREADS = 4


class _Job:
    """What a server hears of its job."""

    def __init__(self, cluster: Cluster, watch: ChiefWatch) -> None:
        self._me = Identity.of(cluster)
        self._watch = watch
        self._token: str | None = None
        self.outcome: str | None = None
        self.ended = threading.Event()

    def hear(self, message: Message) -> Message:
        """Takes a message of a chief; returns the answer."""
        me = {"task": self._me.task, "cluster": self._me.cluster}
        if message.get("cluster") != self._me.cluster:
            return {**me, "answer": "another cluster"}
        if self._token not in (None, message["token"]):
            return {**me, "answer": "busy"}
        if message["kind"] == "claim":
            self._token = message["token"]
            self._watch.claimed_at = time.monotonic()
        else:
            self.outcome = message["outcome"]
            self.ended.set()
        return {**me, "answer": "welcome"}


def run(cluster: Cluster, start_timeout: float, devices: Any = None) -> int:
    """Serves until the job is over.

    Args:
        cluster: the cluster; this task is a worker or a ps.
        start_timeout: how long the chief may take to come, in seconds.
        devices: a `tfdist.devices.Plan`, or None.

    Returns:
        The exit code of this process.

    Raises:
        ClusterError: this task's port is in use.
    """
    import tensorflow as tf

    _wait_for_port(cluster, min(_OLD_SERVER, start_timeout))
    me = Task(cluster.task_type or "", cluster.task_index, cluster.address or "")
    chief = Task("chief", 0, cluster.jobs["chief"][0])
    server = tf.distribute.Server(
        tf.train.ClusterSpec({role: list(tasks) for role, tasks in cluster.jobs.items()}),
        job_name=me.type,
        task_index=me.index,
        protocol="grpc",
        config=session_config(cluster, devices),
    )
    watch = ChiefWatch(time.monotonic(), start_timeout)
    job = _Job(cluster, watch)
    mailbox = Mailbox(me, server.target, job.hear)
    logger.info("%s serves at %s; waiting for the chief at %s", me.name, me.address, chief.address)
    try:
        return _until_the_end(cluster, chief, watch, job)
    except KeyboardInterrupt:
        logger.error("%s was interrupted", me.name)
        return 130
    finally:
        mailbox.close()


def _until_the_end(cluster: Cluster, chief: Task, watch: ChiefWatch, job: _Job) -> int:
    me = cluster.task_name
    next_log = time.monotonic() + _LOG_EVERY
    while not job.ended.wait(_PERIOD):
        failure = _look(cluster, chief, watch)
        now = time.monotonic()
        verdict = watch.verdict(now)
        if verdict is not None and not job.ended.is_set():
            detail = f" ({failure})" if failure and not watch.is_up else ""
            logger.error("the chief at %s %s%s: %s ends", chief.address, verdict, detail, me)
            return 1
        if now >= next_log and not watch.is_up and watch.claimed_at is None:
            waited = now - watch.started
            logger.warning(
                "waiting for the chief at %s (%.0f s): %s", chief.address, waited, failure
            )
            next_log = now + _LOG_EVERY
    _wait_for_departure(chief, time.monotonic() + _CHIEF_LEAVES)
    if job.outcome == "done":
        logger.info("the chief has finished: %s ends", me)
        return 0
    logger.error("the chief %s: %s ends", job.outcome, me)
    return 1


def _look(cluster: Cluster, chief: Task, watch: ChiefWatch) -> str | None:
    """Asks the network for the chief; returns why it is not there."""
    if watch.is_up:
        failure = _knock(chief)
        is_refused = failure == _REFUSED
    else:
        answer = preflight.probe(chief.address, Identity.of(cluster), timeout=2.0)
        failure, is_refused = answer.failure, answer.is_refused
        if answer.identity is not None:
            failure = f"{answer.identity.task} of another kind of job answers there"
    if failure is None:
        if not watch.is_up:
            logger.info("%s has its chief at %s", cluster.task_name, chief.address)
        watch.saw(time.monotonic())
    else:
        watch.missed(time.monotonic(), is_refused)
    return failure


_REFUSED = "refused"


def _knock(chief: Task) -> str | None:
    """Whether a process listens at the chief's address: None, or why not."""
    try:
        socket.create_connection(split_address(chief.address), timeout=2.0).close()
    except ConnectionRefusedError:
        return _REFUSED
    except OSError as error:
        return str(error)
    return None


def _wait_for_departure(chief: Task, until: float) -> None:
    """Returns when the chief's process has gone, or at the deadline."""
    while time.monotonic() < until and _knock(chief) is None:
        time.sleep(0.1)


def _wait_for_port(cluster: Cluster, patience: float) -> None:
    """Returns when this task's port is free.

    Raises:
        ClusterError: it is in use for longer than a server of an earlier run may take to end.
    """
    until = time.monotonic() + patience
    told = False
    while True:
        try:
            preflight.check_own_port(cluster)
            return
        except ClusterError as error:
            # While one ends it may answer as anything.
            is_server = told or "a TensorFlow server" in str(error)
            if not is_server or time.monotonic() >= until:
                raise
            if not told:
                logger.warning("%s Waiting up to %.0f s for it to end.", error, patience)
                told = True
        time.sleep(_PERIOD)


def session_config(cluster: Cluster, devices: Any = None) -> Any:
    """The ConfigProto of a server, which does not heed `tf.config`.

    Args:
        cluster: the cluster.
        devices: a `tfdist.devices.Plan`, or None.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto()
    config.intra_op_parallelism_threads = _threads("TF_NUM_INTRAOP_THREADS") or (
        tf.config.threading.get_intra_op_parallelism_threads()
    )
    asked = _threads("TF_NUM_INTEROP_THREADS") or (
        tf.config.threading.get_inter_op_parallelism_threads()
    )
    workers = len(cluster.jobs["worker"])
    config.inter_op_parallelism_threads = max(
        asked or (os.cpu_count() or 1), workers + 1, _FEWEST_THREADS
    )
    config.gpu_options.allow_growth = True
    if cluster.task_type == "ps":
        config.device_count["GPU"] = 0
    elif devices is not None:
        if devices.cpus is not None:
            config.device_count["CPU"] = devices.cpus
        if devices.kind == "CPU":
            config.device_count["GPU"] = 0
        elif devices.gpus is not None:
            config.gpu_options.visible_device_list = ",".join(map(str, devices.gpus))
        if devices.gpu_memory is not None:
            _limit_memory(config, devices)
    return config


def _limit_memory(config: Any, devices: Any) -> None:
    """Gives the process a part of the memory of each GPU that it uses, instead of growth."""
    import tensorflow as tf

    used = devices.gpus
    if used is None:
        used = range(len(tf.config.list_physical_devices("GPU")))
    config.gpu_options.allow_growth = False
    for _ in used:
        virtual = config.gpu_options.experimental.virtual_devices.add()
        virtual.memory_limit_mb.append(max(1, devices.gpu_memory // 2**20))


def _threads(variable: str) -> int:
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isascii() and text.isdecimal() else 0
