"""Several processes, on one or many machines, each with the whole model on its devices."""

from __future__ import annotations

import logging
import os
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy, distribute_lib

from tfdist import keras_bridge, preflight
from tfdist.cluster import Cluster
from tfdist.errors import ClusterError, ConfigError, explain
from tfdist.strategies.marker import Marker

__all__ = ["MultiWorkerMirroredStrategy"]

logger = logging.getLogger(__name__)

_START_TIMEOUT = 300.0  # seconds


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """`tf.distribute.MultiWorkerMirroredStrategy` under which Keras 3 `fit` equals one device.

    The cluster is validated, the own port checked and the peers waited for, with a line every ten
    seconds and a deadline, before TensorFlow's server starts: TensorFlow itself blocks without a
    word (tensorflow issues 39922, 57372, 46931).
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        *,
        cluster: Cluster | None = None,
        start_timeout: float | None = None,
    ) -> None:
        """Creates the strategy; returns when all workers are connected.

        Args:
            cluster_resolver: as tf.distribute's; TF_CONFIG is read when None.
            communication_options: as tf.distribute's.
            cluster: a resolved cluster, instead of `cluster_resolver`.
            start_timeout: how long to wait for the other workers, in seconds; TFDIST_START_TIMEOUT
                or 300 when None.

        Raises:
            ClusterError: if the cluster is wrong, the port is in use or a worker doesn't answer.
            ConfigError: if TensorFlow has already initialised its devices, or NCCL is asked for
                without GPUs.
        """
        if cluster is None:
            cluster = (
                Cluster.from_resolver(cluster_resolver)
                if cluster_resolver is not None
                else Cluster.resolve()
            )
        _check_roles(cluster)
        if cluster.jobs and cluster.task_type in ("chief", "worker"):
            _check_not_initialized(cluster)
            timeout = _start_timeout(start_timeout)
            preflight.check_own_port(cluster)
            if cluster.is_distributed:
                preflight.wait_for_peers(cluster, timeout)
            cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({job: list(tasks) for job, tasks in cluster.jobs.items()}),
                task_type=cluster.task_type,
                task_id=cluster.task_index,
                rpc_layer="grpc",
            )
        else:
            cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({}), rpc_layer="grpc"
            )
        options = communication_options or tf.distribute.experimental.CommunicationOptions()
        _check_nccl(options)
        # tf.distribute's own __init__ makes its own `extended`, which knows one CPU a worker only.
        distribute_lib.StrategyBase.__init__(self, _Extended(self, cluster_resolver, options))
        self.tfdist = Marker(cluster)
        keras_bridge.install()
        logger.info(
            "%d workers x %d devices = %d replicas; this is worker %d.",
            self.tfdist.num_workers,
            self.num_replicas_in_sync // self.tfdist.num_workers,
            self.num_replicas_in_sync,
            self.tfdist.rank,
        )


class _Extended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
    """Uses every logical CPU of a worker as a replica; upstream uses the first alone."""

    def __init__(
        self, strategy: tf.distribute.Strategy, cluster_resolver: Any, communication_options: Any
    ) -> None:
        super().__init__(
            strategy,
            cluster_resolver=cluster_resolver,
            communication_options=communication_options,
        )

    def _initialize_local_devices(
        self, cluster_resolver: Any, worker_device: str
    ) -> tuple[tuple[str, ...], str]:
        """Replaces upstream's choice of devices: all GPUs of this task, else all its CPUs."""
        kind = "GPU" if tf.config.get_visible_devices("GPU") else "CPU"
        count = sum(
            1
            for device in tf.config.list_logical_devices(kind)
            if not worker_device or device.name.startswith(_task_prefix(worker_device))
        )
        devices = tuple(f"{worker_device}/device:{kind}:{i}" for i in range(max(count, 1)))
        return devices, kind


def _task_prefix(worker_device: str) -> str:
    """Returns "/job:worker/replica:0/task:1" for "/job:worker/task:1"."""
    spec = tf.DeviceSpec.from_string(worker_device)
    return f"/job:{spec.job}/replica:0/task:{spec.task}/"


def _start_timeout(value: float | None) -> float:
    if value is not None:
        return value
    text = os.environ.get("TFDIST_START_TIMEOUT", "")
    if not text:
        return _START_TIMEOUT
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            explain(
                "The start timeout must be a number of seconds",
                received=repr(text),
                source="TFDIST_START_TIMEOUT",
                fix="Set it to a number such as 300",
            )
        ) from None


def _check_roles(cluster: Cluster) -> None:
    if cluster.task_type == "ps" or "ps" in cluster.jobs:
        raise ClusterError(
            explain(
                "MultiWorkerMirroredStrategy has no parameter servers, the cluster has a 'ps' job",
                received=f"jobs {sorted(cluster.jobs)}",
                source=cluster.source,
                fix="Remove the 'ps' job from the cluster, or use a parameter-server strategy",
            )
        )


def _check_not_initialized(cluster: Cluster) -> None:
    from tfdist.strategies.context import is_initialized

    if is_initialized():
        raise ConfigError(
            explain(
                "TensorFlow had already initialised its devices when the strategy was created; an "
                "earlier call made a tensor, a variable or a model, or listed logical devices "
                "(tensorflow issue 34568)",
                source=cluster.source,
                fix="Create the strategy, or call tfdist.create(...), first thing in the script, "
                "before any other use of TensorFlow; restart the process",
            )
        )


def _check_nccl(options: Any) -> None:
    nccl = tf.distribute.experimental.CommunicationImplementation.NCCL
    if options.implementation == nccl and not tf.config.get_visible_devices("GPU"):
        raise ConfigError(
            explain(
                "NCCL works between GPUs only, and this worker has none",
                received="communication implementation NCCL",
                fix="Use implementation='auto' or 'ring'",
            )
        )
