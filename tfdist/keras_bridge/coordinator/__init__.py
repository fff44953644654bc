"""`fit`, `evaluate` and `predict` on a coordinator, whose workers do the steps.

looking       predicting ahead
feeding       which batches there are, and who reads them
steps         the functions that Keras' loops call: they hand steps to the workers
synchronous   steps that all workers do together, on the same weights
"""

from __future__ import annotations

from typing import Any

from tfdist.keras_bridge.coordinator import feeding, looking, steps

__all__ = ["coordinates", "feeding", "looking", "settle", "steps"]


def coordinates(strategy: Any) -> bool:
    """Returns whether a strategy hands its steps to other processes."""
    return bool(getattr(getattr(strategy, "tfdist", None), "coordinates", False))


def settle(model: Any) -> None:
    """Waits for all steps of a model that were handed out, before its state is read.

    Args:
        model: any model; nothing happens to one that no coordinator trains.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if coordinates(strategy):
        strategy.tfdist.pool.settle()
