"""Builds each strategy from a Config and a Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.strategies.mirrored import MirroredStrategy
from tfdist.strategies.multi_worker import MultiWorkerMirroredStrategy
from tfdist.strategies.single import SingleDeviceStrategy

if TYPE_CHECKING:
    from tfdist.cluster import Cluster
    from tfdist.config import Communication, Config

__all__ = ["communication_options", "mirrored", "multi_worker", "single"]


def single(config: Config, cluster: Cluster) -> SingleDeviceStrategy:
    """Builds a `SingleDeviceStrategy` on the process's first device."""
    strategy = SingleDeviceStrategy()
    strategy.tfdist.sync_batch_norm = config.sync_batch_norm
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
