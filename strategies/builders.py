"""Builds each strategy from a Config and a Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.keras_bridge import sidecar
from tfdist.strategies.mirrored import MirroredStrategy
from tfdist.strategies.multi_worker import MultiWorkerMirroredStrategy
from tfdist.strategies.parameter_server import ParameterServerStrategy
from tfdist.strategies.single import SingleDeviceStrategy

if TYPE_CHECKING:
    from tfdist.cluster import Cluster
    from tfdist.config import Communication, Config
    from tfdist.strategies.tpu import TPUStrategy

__all__ = ["communication_options", "mirrored", "multi_worker", "parameter_server", "single", "tpu"]


def single(config: Config, cluster: Cluster) -> SingleDeviceStrategy:
    """Builds a `SingleDeviceStrategy` on the process's first device; also for an evaluator."""
    strategy = SingleDeviceStrategy()
    strategy.tfdist.sync_batch_norm = config.sync_batch_norm
    if cluster.is_evaluator and cluster.jobs:
        recovery = config.recovery
        strategy.tfdist.sidecar = sidecar.Sidecar(
            cluster, recovery.checkpoint_dir, recovery.log_dir, config.start_timeout
        )
    return strategy


def mirrored(config: Config, cluster: Cluster) -> MirroredStrategy:
    """Builds a `MirroredStrategy` over all devices of this process."""
    strategy = MirroredStrategy()
    strategy.tfdist.sync_batch_norm = config.sync_batch_norm
    return strategy


def multi_worker(config: Config, cluster: Cluster) -> MultiWorkerMirroredStrategy:
    """Builds a `MultiWorkerMirroredStrategy` over the cluster's workers."""
    strategy = MultiWorkerMirroredStrategy(
        communication_options=communication_options(config.communication),
        cluster=cluster,
        start_timeout=config.start_timeout,
    )
    strategy.tfdist.sync_batch_norm = config.sync_batch_norm
    return strategy


def parameter_server(config: Config, cluster: Cluster) -> ParameterServerStrategy:
    """Builds a `ParameterServerStrategy` on the chief."""
    settings = config.parameter_server
    strategy = ParameterServerStrategy(
        cluster=cluster,
        synchronous=settings.synchronous,
        backup_workers=settings.backup_workers,
        in_flight=settings.in_flight,
        placement=settings.placement,
        device_filters=settings.device_filters,
        worker_timeout=settings.worker_timeout,
        start_timeout=config.start_timeout,
    )
    strategy.tfdist.sync_batch_norm = config.sync_batch_norm
    return strategy


def tpu(config: Config, cluster: Cluster) -> TPUStrategy:
    """Builds a `TPUStrategy` over the TPU that this process finds."""
    from tfdist.strategies.tpu import TPUStrategy

    strategy = TPUStrategy(start_timeout=config.start_timeout)
    strategy.tfdist.sync_batch_norm = config.sync_batch_norm
    return strategy


def communication_options(
    communication: Communication,
) -> tf.distribute.experimental.CommunicationOptions:
    """Translates the `communication` settings into tf.distribute's options."""
    implementation = {
        "auto": tf.distribute.experimental.CommunicationImplementation.AUTO,
        "ring": tf.distribute.experimental.CommunicationImplementation.RING,
        "nccl": tf.distribute.experimental.CommunicationImplementation.NCCL,
    }[communication.implementation]
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=communication.bytes_per_pack,
        timeout_seconds=communication.collective_timeout,
        implementation=implementation,
    )
