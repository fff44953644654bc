"""`fit`, `evaluate` and `predict` on a coordinator, whose workers do the steps.

looking       predicting ahead
feeding       which batches there are, and who reads them
steps         the functions that Keras' loops call: they hand steps to the workers
synchronous   steps that all workers do together, on the same weights
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tfdist.keras_bridge.coordinator import feeding, looking, steps, synchronous

__all__ = [
    "coordinates",
    "feeding",
    "looking",
    "report_epoch",
    "settle",
    "step_function",
    "steps",
]

logger = logging.getLogger(__name__)


def coordinates(strategy: Any) -> bool:
    """Returns whether a strategy hands its steps to other processes."""
    return bool(getattr(getattr(strategy, "tfdist", None), "coordinates", False))


def step_function(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes the function that Keras' `fit` or `evaluate` calls per execution.

    Args:
        model: the compiled model, built under a strategy that coordinates.
        step: `model.train_step` or `model.test_step`.

    Returns:
        A function from a `feeding.Feed` to the logs.
    """
    if model.distribute_strategy.tfdist.synchronous and step.__name__ == "train_step":
        return synchronous.train_function(model, step)
    return steps.step_function(model, step)


def report_epoch(strategy: Any, epoch: int) -> None:
    """Logs what the progress bar does not show: gradients that came too late, and what each ps holds.

    Args:
        strategy: a tfdist strategy that coordinates.
        epoch: the epoch that has ended, from 0.
    """
    marker = strategy.tfdist
    if marker.backup_workers:
        logger.info(
            "epoch %d: %d gradients came too late for their steps and were dropped, so far",
            epoch + 1,
            marker.dropped_gradients,
        )
    held = marker.placement.describe()
    if held != marker.reported:
        marker.reported = held
        logger.info("%s", held)


def settle(model: Any) -> None:
    """Waits for all steps of a model that were handed out, before its state is read.

    Args:
        model: any model; nothing happens to one that no coordinator trains.
    """
    strategy: Any = getattr(model, "distribute_strategy", None)
    if coordinates(strategy):
        strategy.tfdist.pool.settle()
