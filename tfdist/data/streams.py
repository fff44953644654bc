"""What can be told about a tf.data.Dataset that a user brings, before it is used.

tf.data has no public way to look into a data set. These functions read the attributes that its
classes carry; where a TensorFlow version names them otherwise, they find nothing and don't complain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.errors import DataError, explain

__all__ = [
    "Stream",
    "Stripes",
    "batch_size_of",
    "check_common_order",
    "check_unbatched",
    "element_bytes",
    "leading",
]

# Data sets that hand on the elements of their input as they are.
_SAME_ELEMENTS = (
    "AssertCardinality",
    "Cache",
    "Filter",
    "Options",
    "Prefetch",
    "Repeat",
    "Shuffle",
    "Skip",
    "Take",
)


@dataclass(frozen=True)
class Stream:
    """A source that is read from its beginning.

    Attributes:
        dataset: the elements (or, if `batched`, the batches).
        decode: applied to each element that a worker keeps, before anything else.
        batched: whether the data set comes in batches.
        name: for messages.
    """

    dataset: tf.data.Dataset
    decode: Callable[..., Any] | None = None
    batched: bool = False
    name: str = "the data set"

    @property
    def count(self) -> int | None:
        """Number of elements; None if unknown or infinite."""
        count = int(self.dataset.cardinality())
        return count if count >= 0 else None

    @property
    def infinite(self) -> bool:
        """Whether the data set never ends."""
        return int(self.dataset.cardinality()) == tf.data.INFINITE_CARDINALITY


@dataclass(frozen=True)
class Stripes:
    """A source in several parts that are read side by side, so that workers can divide them.

    With V stripes, each global batch has G / V rows of every stripe, in the stripes' order. If
    the number of workers W divides V, each worker reads V / W stripes and none of the others:

        rows of a batch    | stripe 0 | stripe 1 | stripe 2 | stripe 3 |
        two workers        |      worker 0       |      worker 1       |

    V depends on the batch, not on W, so the batches are the same for every W.

    Attributes:
        parts: the elements of each stripe.
        counts: number of elements of each; they differ by one at most.
        decode: as in a Stream.
        name: for messages.
    """

    parts: tuple[tf.data.Dataset, ...]
    counts: tuple[int, ...]
    decode: Callable[..., Any] | None
    name: str
    batched: ClassVar[bool] = False
    infinite: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """Number of elements."""
        return sum(self.counts)


def _chain(dataset: Any) -> Iterator[tuple[str, Any]]:
    """The data set and its inputs, from the last transformation to the first, with their kinds."""
    while dataset is not None:
        kind = type(dataset).__name__.strip("_").removesuffix("V2").removesuffix("V1")
        yield kind.removesuffix("Dataset"), dataset
        inputs: Any = getattr(dataset, "_inputs", list)()
        dataset = inputs[0] if len(inputs) == 1 else None


def _is_batch(kind: str) -> bool:
    return kind in ("Batch", "ParallelBatch", "PaddedBatch", "Rebatch", "DenseToRaggedBatch")


def leading(spec: Any) -> Any:
    """Size of a component's first dimension: a number, None if it varies, or "none"."""
    shape = getattr(spec, "shape", None)
    if shape is None or shape.rank is None:
        return None
    return shape[0] if shape.rank else "none"


def batch_size_of(dataset: tf.data.Dataset) -> int | None:
    """Rows of a batch of an already batched data set; None if that can't be told."""
    for kind, node in _chain(dataset):
        size = getattr(node, "_batch_size", None)
        if _is_batch(kind) and size is not None:
            value = tf.get_static_value(size)
            return None if value is None else int(value)
        if kind in ("Unbatch", "FlatMap", "Interleave", "ParallelInterleave"):
            return None
    return None


def check_unbatched(dataset: tf.data.Dataset, name: str) -> None:
    """Refuses a data set that is batched already, since it would be batched twice.

    A batch that a `map` made into something else (a text cut into sequences, say) is an element,
    unless all components still have a first dimension that varies.

    Raises:
        DataError: the elements are batches.
    """
    varying = all(leading(spec) is None for spec in tf.nest.flatten(dataset.element_spec))
    direct = True
    for kind, _ in _chain(dataset):
        if _is_batch(kind) and (direct or varying):
            raise DataError(
                explain(
                    f"{name} is batched already, and would be batched a second time",
                    received=f"elements {dataset.element_spec}",
                    fix="Leave out .batch(...), as tfdist batches by the global batch size; or say "
                    "batched=True if it comes in global batches, batched=False if these are rows",
                )
            )
        if kind in ("Unbatch", "FlatMap", "Interleave", "ParallelInterleave"):
            return
        direct = direct and kind.removeprefix("Parallel") in _SAME_ELEMENTS


def check_common_order(dataset: tf.data.Dataset, name: str) -> None:
    """Refuses a data set that shuffles itself without a seed, for several workers to share.

    Each worker would take its rows from another order, so that some rows are used twice and
    others never.

    Raises:
        DataError: there is such a shuffle.
    """
    for kind, node in _chain(dataset):
        seeds = [getattr(node, attribute, None) for attribute in ("_seed", "_seed2")]
        if kind != "Shuffle" or any(seed is None for seed in seeds):
            continue
        values = [tf.get_static_value(seed) for seed in seeds]
        if all(value is not None and int(value) == 0 for value in values):
            raise DataError(
                explain(
                    f"{name} is shuffled without a seed, so each worker would see another order: "
                    "some rows would be used twice, others never",
                    received=".shuffle(...) without `seed`",
                    fix="Leave out .shuffle(...), as tfdist shuffles alike on all workers, or give "
                    "it a seed; say shard='none' if each worker shall draw its own rows",
                )
            )


def element_bytes(spec: Any) -> float:
    """Bytes of one element; infinite when its shape or type does not tell."""
    total = 0.0
    for part in tf.nest.flatten(spec):
        fixed = isinstance(part, tf.TensorSpec) and part.shape.is_fully_defined()
        if not fixed or part.dtype in (tf.string, tf.variant, tf.resource):
            return math.inf
        total += part.shape.num_elements() * part.dtype.size
    return total
