"""The mark that tells a tfdist strategy from tf.distribute's own, and where this process stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
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
        fixed_shapes: whether every step needs the same number of rows, as on a TPU.
        compiles: whether the strategy compiles steps itself, so that `jit_compile` has no part in it.
        sidecar: what an evaluator beside a job needs to know of it; None elsewhere.
    """

    cluster: Cluster
    sync_batch_norm: bool = False
    fixed_shapes: bool = False
    compiles: bool = False
    sidecar: Any = None

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

    # What the Keras bridge, which stands below the strategies, needs of them.

    def exchange(self, name: str, text: str, timeout: float = 60.0) -> list[str]:
        """Gives every worker the text of each; see `coordination.exchange`."""
        from tfdist.strategies import coordination

        return coordination.exchange(self, name, text, timeout)

    def barrier(self, name: str, timeout: float = 60.0) -> None:
        """Returns when every worker has called it; see `coordination.barrier`."""
        from tfdist.strategies import coordination

        coordination.barrier(self, name, timeout)

    def publish(self, key: str, text: str) -> None:
        """Leaves a text for the other workers; see `coordination.publish`."""
        from tfdist.strategies import coordination

        coordination.publish(self, key, text)

    def peek(self, key: str, timeout: float = 0.1) -> str | None:
        """Returns a text that a worker left, or None; see `coordination.peek`."""
        from tfdist.strategies import coordination

        return coordination.peek(self, key, timeout)

    def abort(self, message: str) -> None:
        """Ends the other workers' collectives with a message; see `coordination.abort`."""
        from tfdist.strategies import coordination

        coordination.abort(self, message)

    def peer_failures(self) -> dict[int, str]:
        """Returns what is known of other workers' failures; see `coordination.peer_failures`."""
        from tfdist.strategies import coordination

        return coordination.peer_failures(self)

    def deal(self, strategy: Any, make_dataset: Callable[[Any], Any], uneven: bool) -> Any:
        """Deals a dataset's elements to the replicas; see `input.deal`."""
        from tfdist.strategies import input as strategy_input

        return strategy_input.deal(strategy, make_dataset, uneven)

    def undistributed(self, dataset: Any) -> Any:
        """Returns what a distributed dataset was made of; see `input.undistributed`."""
        from tfdist.strategies import input as strategy_input

        return strategy_input.undistributed(dataset)

    def without_autotuner(self, dataset: Any) -> Any:
        """Turns tf.data's autotuning off for a dataset; see `input.without_autotuner`."""
        from tfdist.strategies import input as strategy_input

        return strategy_input.without_autotuner(dataset)

    def file_sharding_problem(self, dataset: Any) -> str:
        """Returns why a dataset can't be sharded by files; see `input.file_sharding_problem`."""
        from tfdist.strategies import input as strategy_input

        return strategy_input.file_sharding_problem(dataset, self.num_workers, self.rank)

    def global_seed(self, seed: int | None) -> AbstractContextManager[None]:
        """Runs a block under another global seed; see `context.global_seed`."""
        from tfdist.strategies import context

        return context.global_seed(seed)

    def present_seed(self) -> int | None:
        """Returns the global seed; see `context.present_seed`."""
        from tfdist.strategies import context

        return context.present_seed()


def marker_of(strategy: Any) -> Marker | None:
    """Returns the strategy's mark, or None when it is not one of tfdist's.

    Args:
        strategy: a strategy, or a mark itself.
    """
    if isinstance(strategy, Marker):
        return strategy
    return getattr(strategy, "tfdist", None)
