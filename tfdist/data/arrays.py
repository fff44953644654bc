"""Arrays as a source: rows are looked up by number, so that a worker touches only its own.

Small arrays become tensors once. Large ones stay where they are (in NumPy's memory, or on disk if
they are memory maps) and are read batch by batch, so they are never copied whole, nor become part of
a graph, whose limit is 2 GB.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tfdist.errors import DataError, explain

__all__ = ["Rows", "from_arrays"]

# Arrays up to this many bytes in all are copied into tensors.
TENSOR_LIMIT = 256 * 2**20


@dataclass(frozen=True)
class Rows:
    """A source whose rows are found by their number.

    Attributes:
        count: number of rows.
        gather: returns the rows of a vector of row numbers, as the structure of the source.
        fingerprint: tells different contents apart, cheaply; used to compare workers.
        name: for messages.
    """

    count: int
    gather: Callable[[tf.Tensor], Any]
    fingerprint: str
    name: str
    batched: ClassVar[bool] = False
    infinite: ClassVar[bool] = False


def from_arrays(arrays: Any, *, tensor_limit: int = TENSOR_LIMIT, name: str = "arrays") -> Rows:
    """Makes a source of an array, or of a tuple or dict of arrays with equal numbers of rows.

    Floating-point NumPy arrays are cast to Keras's float type, as `fit` does with arrays.

    Args:
        arrays: NumPy arrays, tensors, or what NumPy can convert; nested tuples and dicts of them.
        tensor_limit: up to this many bytes in all are copied into tensors.
        name: for messages.

    Returns:
        The rows.

    Raises:
        DataError: there are no rows, unequal numbers of them, or something that is no array.
    """
    paths = [_label(path) for path, _ in _flatten_with_path(arrays)]
    parts = [_as_array(item, path) for (_, item), path in zip(_flatten_with_path(arrays), paths)]
    if not parts:
        raise DataError(
            explain("The data has no arrays", received=repr(arrays), fix="Give at least one array")
        )
    counts = [_rows_of(part) for part in parts]
    if len(set(counts)) > 1:
        listing = ", ".join(f"{path}: {count}" for path, count in zip(paths, counts))
        raise DataError(
            explain(
                "All arrays must have the same number of rows",
                received=f"rows {listing}",
                fix="Check what was sliced or loaded incompletely",
            )
        )
    if counts[0] == 0:
        raise DataError(
            explain("The data has no rows", received=f"{name} of 0 rows", fix="Give some data")
        )
    fingerprint = _fingerprint(parts)
    lookups = _lookups(parts, tensor_limit)

    def gather(rows: tf.Tensor) -> Any:
        return tf.nest.pack_sequence_as(arrays, lookups(rows))

    return Rows(counts[0], gather, fingerprint, name)


def _flatten_with_path(
    arrays: Any, path: tuple[Any, ...] = ()
) -> list[tuple[tuple[Any, ...], Any]]:
    if isinstance(arrays, dict):
        # tf.nest sorts the keys of a dict.
        items = [(key, arrays[key]) for key in sorted(arrays)]
    elif isinstance(arrays, tuple):
        items = list(enumerate(arrays))
    elif isinstance(arrays, list):
        raise DataError(
            explain(
                "A list does not say whether it is rows or several arrays",
                received=f"a list of {len(arrays)} at {_label(path)}",
                fix="Use numpy.array(...) for rows, or a tuple for several arrays",
            )
        )
    else:
        return [(path, arrays)]
    return [pair for key, item in items for pair in _flatten_with_path(item, (*path, key))]


def _label(path: tuple[Any, ...]) -> str:
    return "data" + "".join(f"[{key!r}]" for key in path)


def _as_array(item: Any, path: str) -> Any:
    if isinstance(item, (tf.Tensor, tf.Variable, tf.RaggedTensor)):
        return tf.convert_to_tensor(item) if isinstance(item, tf.Variable) else item
    try:
        array = item if isinstance(item, np.ndarray) else np.asarray(item)
    except (TypeError, ValueError):
        array = None
    if array is None or array.ndim == 0 or (array.dtype == object and not _holds_text(array)):
        raise DataError(
            explain(
                f"{path} is not an array with rows",
                received=f"{type(item).__name__}"
                + (f" of dtype {array.dtype}, shape {array.shape}" if array is not None else ""),
                fix="Give NumPy arrays or tensors whose first dimension is the rows",
            )
        )
    return array


def _holds_text(array: np.ndarray) -> bool:
    return all(isinstance(item, (str, bytes)) for item in array.ravel()[:100])


def _rows_of(part: Any) -> int:
    if isinstance(part, tf.RaggedTensor):
        return int(part.nrows())
    return int(part.shape[0])


def _fingerprint(parts: list[Any]) -> str:
    """A checksum of types, shapes and a few rows: cheap, whatever the size."""
    value = 0
    for part in parts:
        text = f"{part.dtype}{part.shape}"
        count = _rows_of(part)
        for row in sorted({0, count // 3, count // 2, count - 1}):
            text += _content(part[row])
        value = zlib.crc32(text.encode(), value)
    return f"{value:08x}"


def _content(item: Any) -> str:
    if isinstance(item, tf.RaggedTensor):
        return str(item.to_list())
    array = np.asarray(item)
    # The bytes of an array of objects are addresses.
    return str(array.tolist() if array.dtype == object else array.tobytes())


def _dtype(array: np.ndarray) -> np.dtype:
    """The type that a batch of the array has; floats follow Keras, as arrays given to fit do."""
    if np.issubdtype(array.dtype, np.floating):
        return np.dtype(tf.as_dtype(keras.config.floatx()).as_numpy_dtype)
    return array.dtype


def _lookups(parts: list[Any], limit: int) -> Callable[[tf.Tensor], list[Any]]:
    """Returns a function from row numbers to the rows of every part."""
    size = sum(part.nbytes for part in parts if isinstance(part, np.ndarray))
    streamed = [
        isinstance(part, np.ndarray) and size > limit and part.dtype.kind in "biufc"
        for part in parts
    ]
    large = [part for part, flag in zip(parts, streamed) if flag]
    with tf.init_scope(), tf.device("CPU:0"):
        tensors = [None if flag else _to_tensor(part) for part, flag in zip(parts, streamed)]

    def read(rows: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(part[rows], dtype=_dtype(part)) for part in large]

    def lookup(rows: tf.Tensor) -> list[Any]:
        found = iter(())
        if large:
            types = [tf.as_dtype(_dtype(part)) for part in large]
            outputs = tf.nest.flatten(tf.numpy_function(read, [rows], types, stateful=False))
            for output, part in zip(outputs, large):
                output.set_shape([*rows.shape, *part.shape[1:]])
            found = iter(outputs)
        return [next(found) if tensor is None else tf.gather(tensor, rows) for tensor in tensors]

    return lookup


def _to_tensor(part: Any) -> Any:
    if isinstance(part, np.ndarray):
        return tf.convert_to_tensor(part.astype(_dtype(part), copy=False))
    return part
