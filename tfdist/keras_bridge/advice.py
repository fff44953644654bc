"""Warnings, once per model, about what trains but not as its user may think."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import keras

from tfdist.keras_bridge.marks import parts_of

__all__ = ["advise"]

logger = logging.getLogger(__name__)

_GIVEN = "_tfdist_advised"
_FEW_ROWS = 16


def advise(model: Any, strategy: Any, batch_size: int | None = None) -> None:
    """Logs what is worth knowing before a model trains.

    Args:
        model: the model.
        strategy: its tfdist strategy.
        batch_size: rows of the global batch, where known.
    """
    if getattr(model, _GIVEN, False):
        return
    object.__setattr__(model, _GIVEN, True)
    for line in _advice(model, strategy, batch_size):
        logger.warning("%s", line)


def _advice(model: Any, strategy: Any, batch_size: int | None) -> Iterator[str]:
    replicas = parts_of(strategy)
    layers = model._flatten_layers()
    plain = [
        layer.name
        for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
    ]
    if plain and replicas > 1 and not strategy.tfdist.sync_batch_norm:
        rows = f" (about {batch_size // replicas} each)" if batch_size else ""
        if not batch_size or batch_size // replicas < _FEW_ROWS:
            yield (
                f"BatchNormalization takes its statistics over each replica's own rows{rows}, not "
                f"over the global batch: {', '.join(plain[:3])}{'...' if plain[3:] else ''}. For "
                "one device's numbers use tfdist.create(sync_batch_norm=True) or "
                "BatchNormalization(synchronized=True)."
            )
    outputs = getattr(model, "outputs", None) or []
    if any(getattr(output, "dtype", "") == "float16" for output in outputs):
        yield (
            "The model's output is float16, in which a softmax underflows to log(0); give the last "
            'layer dtype="float32" (keras issue 16552).'
        )
