"""The mark that tells a tfdist strategy from tf.distribute's own, and where this process stands."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdist.cluster import Cluster

__all__ = ["Marker", "marker_of"]


@dataclasses.dataclass
class Marker:
    """What the Keras bridge and the callbacks need to know of a strategy.

    Attributes:
        cluster: the cluster that this process belongs to.
        sync_batch_norm: whether plain BatchNormalization layers take their statistics over all
            replicas, as on one device.
    """

    cluster: Cluster
    sync_batch_norm: bool = False

    @property
    def num_workers(self) -> int:
        """Number of processes that train together; 1 outside a cluster."""
        return self.cluster.num_workers if self.cluster.is_distributed else 1

    @property
    def rank(self) -> int:
        """Position of this process among the workers, from 0 (the chief)."""
        return self.cluster.rank if self.cluster.is_distributed else 0

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and prints progress for the job."""
        return self.rank == 0


def marker_of(strategy: Any) -> Marker | None:
    """Returns the strategy's mark, or None when it is not one of tfdist's."""
    return getattr(strategy, "tfdist", None)
