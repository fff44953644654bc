"""A coordinator, workers that compute, and parameter servers that hold the variables."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, remote
from tensorflow.python.training import server_lib

from tfdist import keras_bridge, serving
from tfdist.cluster import Cluster
from tfdist.errors import UnsupportedError, explain
from tfdist.strategies.marker import Marker
from tfdist.strategies.placement import Placement
from tfdist.strategies.worker_pool import WorkerPool

__all__ = ["CoordinatorMarker", "ParameterServerStrategy"]

_CONNECT_RETRIES = 3  # as tf.distribute's


@dataclasses.dataclass
class CoordinatorMarker(Marker):
    """The mark of a strategy whose one Python program hands its steps to other processes.

    Attributes:
        synchronous: whether a step is done by all workers together.
        backup_workers: how many gradients a synchronous step may leave out.
        pool: the workers.
        placement: what each parameter server holds.
        dropped_gradients: how many gradients came too late, in all synchronous steps so far.
        reported: what was last logged of the placement.
    """

    synchronous: bool = False
    backup_workers: int = 0
    pool: WorkerPool | None = None
    placement: Placement | None = None
    dropped_gradients: int = 0
    reported: str = ""

    coordinates = True

    # One program trains: nothing is agreed on with others.

    @property
    def num_workers(self) -> int:
        """Programs that call `fit` together: the coordinator alone."""
        return 1

    @property
    def rank(self) -> int:
        """The coordinator's place among them."""
        return 0


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
    """`tf.distribute.ParameterServerStrategy` under which Keras 3 `fit` works.

    The script runs on every task. Where the task is a worker or a parameter server, the constructor
    serves, and ends the process when the job is over; on the chief it returns, and `fit`, `evaluate`
    and `predict` hand their steps to the workers.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        variable_partitioner: Any = None,
        *,
        cluster: Cluster | None = None,
        synchronous: bool = False,
        backup_workers: int = 0,
        in_flight: int = 4,
        placement: str = "bytes",
        device_filters: bool = True,
        worker_timeout: float = 300.0,
        start_timeout: float | None = None,
    ) -> None:
        """Connects to the cluster; serves where this task is a worker or a parameter server.

        Args:
            cluster_resolver: as tf.distribute's; TF_CONFIG is read when None.
            variable_partitioner: must be None, see Raises.
            cluster: a resolved cluster, instead of `cluster_resolver`.
            synchronous: whether the workers' gradients of a step are averaged on the same weights.
            backup_workers: a synchronous step goes on without so many of the slowest gradients
                (Chen et al. 2016, arXiv 1604.00981).
            in_flight: steps scheduled ahead for each worker.
            placement: "bytes" (a variable is born on the parameter server that holds the least) or
                "round_robin" (in turn).
            device_filters: whether workers see the parameter servers and the chief only.
            worker_timeout: how long `fit` waits when no worker is left, in seconds.
            start_timeout: how long to wait for the other tasks, in seconds.

        Raises:
            ClusterError: the cluster has no chief, worker or ps, or a task does not answer.
            ConfigError: TensorFlow has already initialised its devices, or `backup_workers` leaves
                no worker.
            UnsupportedError: a partitioner is given: Keras 3 can't train the sharded variables that
                it makes.
        """
        if cluster is None:
            cluster = (
                Cluster.from_resolver(cluster_resolver)
                if cluster_resolver is not None
                else Cluster.resolve()
            )
        _check(cluster, variable_partitioner, synchronous, backup_workers)
        self._device_filters = device_filters
        serving.take_role(cluster, start_timeout)
        super().__init__(_resolver(cluster))
        marker = CoordinatorMarker(cluster, synchronous=synchronous, backup_workers=backup_workers)
        marker.placement = Placement(self._num_ps, by_bytes=placement == "bytes")
        marker.placement.install(self.extended)
        # The coordinator itself applies the gradients of a synchronous step, in a replica's context.
        self.extended._allow_run_without_coordinator = True
        marker.pool = WorkerPool(self, cluster, in_flight, worker_timeout)
        self.tfdist = marker
        keras_bridge.install()

    @property
    def dropped_gradients(self) -> int:
        """How many gradients came too late for their synchronous step, so far (`backup_workers`)."""
        return self.tfdist.dropped_gradients

    def _connect_to_cluster(self, coordinator_name: str) -> None:
        """Connects, with device filters or without; stands in for tf.distribute's own method.

        There, filters can't be turned off.
        """
        if self._device_filters:
            super()._connect_to_cluster(coordinator_name)
            return
        cluster_spec = self._cluster_resolver.cluster_spec()
        self._num_workers = cluster_spec.num_tasks("worker")
        self._num_ps = cluster_spec.num_tasks("ps")
        os.environ["TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"] = "False"
        os.environ["TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY"] = "True"
        remote.connect_to_cluster(
            cluster_spec,
            job_name=coordinator_name,
            protocol=self._cluster_resolver.rpc_layer,
            cluster_device_filters=server_lib.ClusterDeviceFilters(),
        )
        context.set_server_def_retries(_CONNECT_RETRIES)
        context.ensure_initialized()


def _resolver(cluster: Cluster) -> tf.distribute.cluster_resolver.SimpleClusterResolver:
    spec = tf.train.ClusterSpec({role: list(found) for role, found in cluster.jobs.items()})
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )


def _check(cluster: Cluster, partitioner: Any, synchronous: bool, backup_workers: int) -> None:
    if partitioner is not None:
        raise UnsupportedError(
            explain(
                "Keras 3 can't train variables that a `variable_partitioner` has split: they have no "
                "handle to differentiate by",
                received=f"variable_partitioner={type(partitioner).__name__}",
                fix="Use tfdist.layers.ShardedEmbedding for tables that are too big for one ps",
            )
        )
    serving.check_backup_workers(cluster, synchronous, backup_workers)
