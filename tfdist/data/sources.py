"""Turns whatever a user gives as data into rows found by number, or a stream of elements."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from tfdist.data import clicks, streams
from tfdist.data.arrays import Rows, from_arrays
from tfdist.data.shares import Share
from tfdist.data.streams import Stream, Stripes
from tfdist.errors import DataError, explain

__all__ = ["Place", "Source", "open_source"]

Source: TypeAlias = Rows | Stream | Stripes

_KINDS = (
    "a TFDS name, a tf.data.Dataset, arrays (one, a tuple or a dict), "
    "or a function of tf.distribute.InputContext"
)


@dataclass(frozen=True)
class Place:
    """Where this process stands, for sources that depend on it.

    Attributes:
        share: the worker's part of each global batch.
        shard: "global", "local" or "none".
        local_replicas: replicas of this worker.
    """

    share: Share
    shard: str = "global"
    local_replicas: int = 1

    @property
    def context(self) -> tf.distribute.InputContext:
        """What an input function is called with."""
        return tf.distribute.InputContext(
            num_input_pipelines=self.share.num_workers,
            input_pipeline_id=self.share.rank,
            num_replicas_in_sync=self.share.num_workers * self.local_replicas,
        )


def open_source(
    source: Any,
    place: Place,
    *,
    split: str = "train",
    batched: bool | None = None,
    data_dir: str | None = None,
    in_memory: bool = True,
    shuffled: bool = False,
    **tfds_options: Any,
) -> tuple[Source, Place]:
    """Opens a source of any kind.

    Args:
        source: see `make_dataset`.
        place: where this process stands.
        split: the split of a TFDS data set; for other kinds it only says what the data is for.
        batched: whether a data set's elements are batches.
        data_dir: where TFDS data sets are.
        in_memory: whether small TFDS splits may be read into memory.
        shuffled: whether the order of a TFDS split does not matter, so that it can be read in
            stripes.
        **tfds_options: more options of a TFDS data set.

    Returns:
        The source, and the place, whose `shard` is "local" for a function.

    Raises:
        DataError: the source is of no known kind, or can't be used as asked.
    """
    if isinstance(source, str):
        _refuse_batched(batched, "A TFDS data set")
        if source.strip().lower() == clicks.NAME:
            return _from_clicks(split, tfds_options.get("as_supervised")), place
        from tfdist.data import tfds_source

        divided = shuffled and place.shard == "global"
        opened = tfds_source.from_tfds(
            source,
            split=split,
            data_dir=data_dir,
            in_memory=in_memory,
            stripes_for=place.share.global_batch if divided else None,
            **tfds_options,
        )
        return opened, place
    if given := [name for name, value in tfds_options.items() if value is not None]:
        raise DataError(
            explain(
                "Some options are for TFDS data sets only",
                received=f"{', '.join(given)} with a source of type {type(source).__name__}",
                fix="Leave them out",
            )
        )
    if "[" in split or ":" in split:
        raise DataError(
            explain(
                "Only TFDS data sets can be sliced by `split`",
                received=f"split={split!r} with a source of type {type(source).__name__}",
                fix="Slice the data itself; here `split` is a plain name such as 'train' or 'test'",
            )
        )
    if isinstance(source, tf.data.Dataset):
        return _from_dataset(source, place, batched), place
    if _is_array(source):
        _refuse_batched(batched, "An array source")
        return from_arrays(source), place
    if callable(source) and not isinstance(source, type):
        return _from_function(source, place, batched)
    raise _unknown(source)


def _from_clicks(split: str, as_supervised: bool | None) -> Rows:
    drawn = clicks.synthetic_clicks(split)
    name = f"{clicks.NAME}[{split}]"
    if as_supervised is False:  # a dict of all features, as of a TFDS data set
        return from_arrays({**drawn.features, "label": drawn.labels}, name=name)
    return from_arrays((drawn.features, drawn.labels), name=name)


def _is_array(source: Any) -> bool:
    return isinstance(source, (tuple, Mapping, tf.Tensor, tf.Variable, tf.RaggedTensor)) or hasattr(
        source, "__array__"
    )


def _refuse_batched(batched: bool | None, what: str) -> None:
    if batched:
        raise DataError(
            explain(
                f"{what} is never batched already",
                received="batched=True",
                fix="Leave `batched` out; it is for tf.data.Dataset sources",
            )
        )


def _from_dataset(dataset: tf.data.Dataset, place: Place, batched: bool | None) -> Stream:
    name = "The data set"
    if int(dataset.cardinality()) == 0:
        raise DataError(
            explain(
                f"{name} has no rows", received=f"{type(dataset).__name__}", fix="Give some data"
            )
        )
    if batched is None:
        streams.check_unbatched(dataset, name)
    if place.shard == "global" and place.share.num_workers > 1:
        streams.check_common_order(dataset, name)
    if batched:
        _check_batch_size(
            dataset,
            {place.share.global_batch},
            "batches of the global batch size"
            if place.shard == "global"
            else "batches of this worker's share of the global batch",
        )
    return Stream(dataset, batched=bool(batched), name=name)


def _from_function(
    function: Callable[..., Any], place: Place, batched: bool | None
) -> tuple[Stream, Place]:
    try:
        inspect.signature(function).bind(place.context)
    except TypeError:
        raise DataError(
            explain(
                "A source that is a function must take one tf.distribute.InputContext",
                received=f"{getattr(function, '__qualname__', function)!s}"
                f"{inspect.signature(function)}",
                fix="Write `def data(context): ...` that returns this worker's tf.data.Dataset; wrap "
                "a generator with tf.data.Dataset.from_generator",
            )
        ) from None
    except ValueError:  # Some callables written in C have no signature.
        pass
    dataset = function(place.context)
    if not isinstance(dataset, tf.data.Dataset):
        raise DataError(
            explain(
                "The input function must return a tf.data.Dataset",
                received=type(dataset).__name__,
                fix="Return this worker's part as a tf.data.Dataset",
            )
        )
    # The function hands out this worker's part by itself: nothing is left to divide.
    own = Share(place.share.batch)
    place = Place(own, "local", place.local_replicas)
    if batched is False:
        return _from_dataset(dataset, place, None), place
    per_replica = own.batch // place.local_replicas
    _check_batch_size(
        dataset,
        {per_replica, own.batch},
        "the batch of one replica, context.get_per_replica_batch_size(global_batch_size)",
    )
    _check_is_batched(dataset, {per_replica, own.batch})
    size = streams.batch_size_of(dataset)
    if place.local_replicas > 1 and size != own.batch:
        dataset = _joined(dataset, place.local_replicas, own.batch, size == per_replica)
    return Stream(dataset, batched=True, name="the input function's data set"), place


def _check_is_batched(dataset: tf.data.Dataset, allowed: set[int]) -> None:
    """Refuses rows, which would be taken for batches, their first dimension for the rows."""
    if streams.batch_size_of(dataset) is not None:
        return
    specs = tf.nest.flatten(dataset.element_spec)
    sizes = {streams.leading(spec) for spec in specs} - {None}
    if len(sizes) <= 1 and sizes <= allowed:
        return
    raise DataError(
        explain(
            "The input function must return batches, in which all components have the same rows",
            received=f"elements {dataset.element_spec}; expected batches of "
            f"{' or '.join(map(str, sorted(allowed)))}",
            fix="Call .batch(context.get_per_replica_batch_size(global_batch_size)), or say "
            "batched=False if the function returns rows",
        )
    )


def _joined(dataset: tf.data.Dataset, replicas: int, batch: int, known: bool) -> tf.data.Dataset:
    """Joins the batches of a worker's replicas; rebatching alone forgets how many there are."""
    count = int(dataset.cardinality())
    dataset = dataset.rebatch(batch)
    if count >= 0 and known:
        count = -(-count // replicas)
    elif count != tf.data.INFINITE_CARDINALITY:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def _check_batch_size(dataset: tf.data.Dataset, allowed: set[int], meaning: str) -> None:
    size = streams.batch_size_of(dataset)
    if size is not None and size not in allowed:
        raise DataError(
            explain(
                f"The data set must come in {meaning}",
                received=f"batches of {size}; expected {' or '.join(map(str, sorted(allowed)))}",
                fix="Batch by that size, or give the global_batch_size that belongs to it",
            )
        )


def _unknown(source: Any) -> DataError:
    fix = f"Give {_KINDS}"
    if isinstance(source, list):
        fix = "Use numpy.array(...) for rows, or a tuple for several arrays"
    elif isinstance(source, tf.distribute.DistributedDataset):
        fix = "Give the tf.data.Dataset itself: tfdist distributes it"
    elif inspect.isgenerator(source):
        fix = "Wrap the generator's function with tf.data.Dataset.from_generator"
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        fix = f"Pass a PyDataset straight to model.fit; here give {_KINDS}"
    return DataError(
        explain("The source is of no known kind", received=type(source).__name__, fix=fix)
    )
