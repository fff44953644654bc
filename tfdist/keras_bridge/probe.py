"""Finds out whether a loss can be put together from the replicas' parts of a batch.

A loss function that returns one number for a batch hides whether it is a mean or a sum; one that
returns a value per example may still compare the examples with each other. So a loss whose ways
aren't known is tried on two small batches a and b and on both together:

    per example    f(ab) = f(a) and f(b), joined
    mean           f(ab) = (f(a) + f(b)) / 2
    sum            f(ab) = f(a) + f(b)
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend
from keras.src.losses.losses import LossFunctionWrapper as _FunctionLoss

from tfdist.errors import LossError, explain
from tfdist.keras_bridge import losses
from tfdist.keras_bridge.marks import parts_of

__all__ = ["classify", "found_unproven_losses"]

logger = logging.getLogger(__name__)

_ROWS = 4  # of each of the two small batches
_BATCH_LOSSES = ("Circle", "Dice", "Tversky")  # Keras' losses that look at the batch as a whole


@contextlib.contextmanager
def found_unproven_losses(model: Any) -> Iterator[list[Any]]:
    """Collects the losses of the block that are not known to treat each row by itself.

    Args:
        model: the model that is built in the block.
    """
    found: list[Any] = []
    with losses.record_losses() as records:
        yield found
    if parts_of(model.distribute_strategy) == 1:
        return
    for loss, value in records:
        if _is_row_by_row(loss) and len(value.shape) > 0:
            continue
        if all(loss is not other for other in found):
            found.append(loss)


def classify(model: Any, unproven: list[Any], iterator: Any, data_batch: Any) -> None:
    """Notes what each loss does with its rows.

    Args:
        model: the built model.
        unproven: losses from `found_unproven_losses`.
        iterator: the epoch iterator with the training data, or None.
        data_batch: a batch, where there is no iterator.

    Raises:
        LossError: if a loss can't be put together from parts of a batch.
    """
    batch = data_batch if data_batch is not None else _first_batch(iterator)
    if batch is None:
        logger.warning(
            "The data can be read only once, so the loss was not tried on a part of it: a loss "
            "that returns one number per batch is taken for a mean over the batch."
        )
        return
    batch = keras.tree.map_structure(
        lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), batch
    )
    rows = min(int(tf.shape(leaf)[0]) for leaf in keras.tree.flatten(batch) if leaf is not None)
    half = min(_ROWS, rows // 2)
    first = _rows(batch, 0, half) if half else batch
    second = _rows(batch, half, 2 * half) if half else batch
    both = keras.tree.map_structure(
        lambda a, b: None if a is None else tf.concat([a, b], 0), first, second
    )
    values = [_values(model, part) for part in (first, second, both)]
    for loss in unproven:
        if any(id(loss) not in part for part in values):
            continue  # called from a custom `compute_loss`: a scalar is taken for a mean
        tolerance = 1e-4 if model.compute_dtype in ("float32", "float64") else 1e-2
        _classify(loss, tolerance, *(np.asarray(part[id(loss)], np.float64) for part in values))


def _classify(loss: Any, tolerance: float, a: np.ndarray, b: np.ndarray, ab: np.ndarray) -> None:
    close = functools.partial(np.allclose, rtol=tolerance, atol=tolerance / 100)
    if ab.ndim > 0:
        if close(np.concatenate([a, b]), ab):
            return
        problem = "compares the rows of a batch with each other"
    elif type(loss).__name__ in _BATCH_LOSSES and _is_keras(type(loss)):
        problem = "is a ratio of sums over the batch"
    elif close(ab, (a + b) / 2):
        losses.set_scalar_kind(loss, "mean")
        return
    elif close(ab, a + b):
        losses.set_scalar_kind(loss, "sum")
        return
    else:
        problem = "returns one number per batch that is neither the mean nor the sum over its rows"
    raise LossError(
        explain(
            f"The loss '{getattr(loss, 'name', type(loss).__name__)}' {problem}, so it would "
            "depend on the number of replicas",
            received=f"{a.mean():.6g} and {b.mean():.6g} for two batches, {ab.mean():.6g} for both "
            "together",
            fix="Return one value per example (shape [batch]) that depends on that example alone",
        )
    )


def _is_row_by_row(loss: Any) -> bool:
    """Returns whether a loss is one of Keras' that treat each row by itself."""
    function = getattr(loss, "fn", None)
    if type(loss) is _FunctionLoss:
        return _is_keras(function)
    return _is_keras(type(loss)) and type(loss).__name__ not in _BATCH_LOSSES


def _is_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("keras.src.losses")


def _first_batch(iterator: Any) -> Any | None:
    """Returns a batch, without taking it from the training."""
    adapter = iterator.data_adapter
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


def _values(model: Any, batch: Any) -> dict[int, Any]:
    """Returns the value of each loss before its reduction, by the loss's id."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    y_pred = model(x, training=False) if model._call_has_training_arg else model(x)
    # Stateless, since the losses' trackers can't be updated outside of a replica.
    with losses.record_losses() as records, backend.StatelessScope():
        model._compile_loss(y, y_pred, sample_weight)
    return {id(loss): value for loss, value in records}
