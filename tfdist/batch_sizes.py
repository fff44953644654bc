"""The global batch and one replica's part of it. Pure arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tfdist.config import DEFAULT_GLOBAL_BATCH_SIZE
from tfdist.errors import ConfigError, explain

if TYPE_CHECKING:
    from tfdist.cluster import Cluster
    from tfdist.config import Config

__all__ = ["BatchSizes", "batch_sizes", "replica_count"]


class BatchSizes(NamedTuple):
    """Rows of one step: over all replicas, and of one replica."""

    global_size: int
    per_replica: int


def replica_count(name: str, config: Config, cluster: Cluster, devices: int) -> int:
    """Over how many replicas each global batch is divided.

    With parameter servers every step is one worker's own, on a batch of its own; if they are
    synchronous, all workers share each step's batch.

    Args:
        name: the strategy; never "auto".
        config: the settings.
        cluster: the cluster.
        devices: devices of this process.
    """
    if name == "parameter_server":
        return len(cluster.jobs["worker"]) if config.parameter_server.synchronous else 1
    return cluster.num_workers * (devices if name != "single" else 1)


def batch_sizes(config: Config, replicas: int) -> BatchSizes:
    """Works out both batch sizes from the one that the Config gives.

    Args:
        config: the settings; when it gives neither size, the global one is the default of 32,
            rounded up to a multiple of the replicas.
        replicas: over all workers.

    Returns:
        Both sizes.

    Raises:
        ConfigError: the global batch is smaller than the replicas, or does not divide by them.
    """
    if config.per_replica_batch_size is not None:
        return BatchSizes(config.per_replica_batch_size * replicas, config.per_replica_batch_size)
    size = config.global_batch_size
    if size is None:
        per_replica = -(-DEFAULT_GLOBAL_BATCH_SIZE // replicas)
        return BatchSizes(per_replica * replicas, per_replica)
    if size % replicas == 0:
        return BatchSizes(size, size // replicas)
    if size < replicas:
        problem = (
            f"The global batch is smaller than the {replicas} replicas: some would have no rows"
        )
    else:
        problem = f"The global batch does not divide over the {replicas} replicas"
    lower, upper = size // replicas * replicas, -(-size // replicas) * replicas
    near = f"{lower} or {upper}" if lower else f"{upper}"
    raise ConfigError(
        explain(
            problem,
            received=f"global_batch_size={size}",
            source=config.origin("global_batch_size"),
            fix=f"Use a multiple of {replicas}, such as {near}; or per_replica_batch_size",
        )
    )
