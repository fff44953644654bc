"""Finds out what a loss that returns a scalar does with its rows.

A loss function that returns one number for a batch hides whether it is a mean or a sum, and only
those two can be put together from the replicas' parts. So it is tried on two small batches a and
b and on both together:

    mean     f(ab) = (f(a) + f(b)) / 2
    sum      f(ab) = f(a) + f(b)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend

from tfdist.errors import LossError, explain
from tfdist.keras_bridge import input as step_input
from tfdist.keras_bridge import losses

__all__ = ["classify", "found_scalar_losses"]

logger = logging.getLogger(__name__)

_ROWS = 4  # of each of the two small batches


@contextlib.contextmanager
def found_scalar_losses(model: Any) -> Iterator[list[Any]]:
    """Collects the losses that turn out to return a scalar in the block.

    Args:
        model: the model that is built in the block.
    """
    found: list[Any] = []
    with losses.record_scalar_losses() as records:
        yield found
    if model.distribute_strategy.num_replicas_in_sync == 1:
        return
    for loss, _ in records:
        if all(loss is not other for other in found):
            found.append(loss)


def classify(model: Any, scalar_losses: list[Any], iterator: Any, data_batch: Any) -> None:
    """Notes for each loss whether it is a mean or a sum over the rows.

    Args:
        model: the built model.
        scalar_losses: its losses that return a scalar.
        iterator: the epoch iterator with the training data, or None.
        data_batch: a batch, where there is no iterator.

    Raises:
        LossError: if a loss is neither.
    """
    batch = data_batch if data_batch is not None else _first_batch(iterator)
    if batch is None:
        logger.warning(
            "A loss returns one number per batch and the data can be read only once; it is taken "
            "for a mean over the batch. Return one value per example to be sure."
        )
        return
    batch = keras.tree.map_structure(
        lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), batch
    )
    rows = int(step_input._row_count([leaf for leaf in keras.tree.flatten(batch) if leaf is not None]))
    half = min(_ROWS, rows // 2)
    first = _rows(batch, 0, half) if half else batch
    second = _rows(batch, half, 2 * half) if half else batch
    both = keras.tree.map_structure(
        lambda a, b: None if a is None else tf.concat([a, b], 0), first, second
    )
    values = [_scalar_values(model, part) for part in (first, second, both)]
    for loss in scalar_losses:
        if any(id(loss) not in part for part in values):
            continue  # called from a custom `compute_loss`: taken for a mean
        a, b, ab = (float(part[id(loss)]) for part in values)
        tolerance = 1e-5 + 1e-3 * max(abs(a), abs(b), abs(ab))
        if abs(ab - (a + b) / 2) <= tolerance:
            losses.set_scalar_kind(loss, "mean")
        elif abs(ab - (a + b)) <= tolerance:
            losses.set_scalar_kind(loss, "sum")
        else:
            name = getattr(loss, "name", type(loss).__name__)
            raise LossError(
                explain(
                    f"The loss '{name}' returns one number per batch that is neither the mean nor "
                    "the sum over its rows, so it would depend on the number of replicas",
                    received=f"{a:.6g} and {b:.6g} for two batches, {ab:.6g} for both together",
                    fix="Return one value per example (shape [batch]) from the loss",
                )
            )


def _first_batch(iterator: Any) -> Any | None:
    """Returns a batch, without taking it from the training."""
    adapter = getattr(iterator, "data_adapter", None)
    name = type(adapter).__name__
    if name == "GeneratorDataAdapter":
        return None
    if name == "PyDatasetAdapter":
        return adapter.py_dataset[0]
    for batch in adapter.get_tf_dataset().take(1):
        return batch
    return None


def _rows(batch: Any, first: int, last: int) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[first:last], batch)


def _scalar_values(model: Any, batch: Any) -> dict[int, Any]:
    """Returns the value of each loss that returns a scalar, by the loss's id."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    y_pred = model(x, training=False) if model._call_has_training_arg else model(x)
    # Stateless, since the losses' trackers can't be updated outside of a replica.
    with losses.record_scalar_losses() as records, backend.StatelessScope():
        model._compile_loss(y, y_pred, sample_weight)
    return {id(loss): value for loss, value in records}
