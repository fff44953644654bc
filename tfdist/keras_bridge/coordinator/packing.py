"""Many tensors in few, because each tensor that a worker returns is fetched by a call of its own."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

__all__ = ["Packing"]

_DENSE, _SPARSE, _NONE = "dense", "sparse", "none"


class Packing:
    """Packs a list of gradients and values into one vector for each dtype.

    The structure is that of the list packed last, at the time of tracing: shapes, dtypes, and which
    gradients are sparse (`tf.IndexedSlices`, which stay as they are) or missing.

    Attributes:
        outputs: what the traced function that packs returns.
    """

    def __init__(self) -> None:
        self.outputs: Any = None
        self._items: list[tuple[str, Any, Any]] = []

    def pack(self, tensors: list[Any]) -> dict[str, Any]:
        """Returns the tensors as a dict: a vector for each dtype, and the sparse ones apart."""
        self._items = []
        flat: dict[str, list[Any]] = {}
        packed: dict[str, Any] = {}
        for index, tensor in enumerate(tensors):
            if tensor is None:
                self._items.append((_NONE, None, None))
            elif isinstance(tensor, tf.IndexedSlices):
                self._items.append((_SPARSE, None, tensor.values.shape))
                packed[f"sparse_{index:05d}"] = (
                    tensor.values,
                    tensor.indices,
                    tensor.dense_shape,
                )
            else:
                tensor = tf.convert_to_tensor(tensor)
                self._items.append((_DENSE, tensor.dtype, tuple(tensor.shape)))
                flat.setdefault(tensor.dtype.name, []).append(tf.reshape(tensor, [-1]))
        for name, parts in flat.items():
            packed[name] = tf.concat(parts, 0)
        return packed

    def unpack(self, packed: dict[str, Any]) -> list[Any]:
        """Returns the list that `pack` was given."""
        places: dict[str, int] = {}
        tensors: list[Any] = []
        for index, (kind, dtype, shape) in enumerate(self._items):
            if kind == _NONE:
                tensors.append(None)
            elif kind == _SPARSE:
                values, indices, dense_shape = packed[f"sparse_{index:05d}"]
                tensors.append(tf.IndexedSlices(values, indices, dense_shape))
            else:
                size = math.prod(shape)
                start = places.get(dtype.name, 0)
                places[dtype.name] = start + size
                tensors.append(tf.reshape(packed[dtype.name][start : start + size], shape))
        return tensors
