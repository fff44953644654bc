"""Which strategies, models and optimizers are tfdist's."""

from __future__ import annotations

from typing import Any

__all__ = ["is_tfdist", "strategy_of"]


def is_tfdist(strategy: Any) -> bool:
    """Returns whether a strategy is one of tfdist's."""
    return getattr(strategy, "tfdist", None) is not None


def strategy_of(model: Any) -> Any | None:
    """Returns the tfdist strategy under which a model was built, or None."""
    strategy = getattr(model, "_distribute_strategy", None)
    return strategy if is_tfdist(strategy) else None
