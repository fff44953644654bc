"""Which strategies, models and optimizers are tfdist's."""

from __future__ import annotations

from typing import Any

__all__ = ["is_tfdist", "parts_of", "strategy_of"]


def is_tfdist(strategy: Any) -> bool:
    """Returns whether a strategy is one of tfdist's."""
    return getattr(strategy, "tfdist", None) is not None


def strategy_of(model: Any) -> Any | None:
    """Returns the tfdist strategy under which a model was built, or None."""
    strategy = getattr(model, "_distribute_strategy", None)
    return strategy if is_tfdist(strategy) else None


def parts_of(strategy: Any) -> int:
    """Returns how many parts of a batch are computed apart and put together.

    Those of the replicas; or of the workers, where a coordinator lets them do a step together.

    Args:
        strategy: a tfdist strategy.
    """
    marker = strategy.tfdist
    if getattr(marker, "coordinates", False):
        return int(marker.pool.num_workers) if marker.synchronous else 1
    return int(strategy.num_replicas_in_sync)
