"""Data sets of TensorFlow Datasets as a source, among them tfdist's own `digits`."""

from __future__ import annotations

import logging
import math
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_datasets as tfds

from tfdist.config.fields import nearest
from tfdist.data import prepare
from tfdist.data.arrays import Rows, from_arrays
from tfdist.data.digits import digits_dataset_builder  # registers `digits`
from tfdist.data.streams import Stream, Stripes, element_bytes
from tfdist.errors import DataError, explain

__all__ = ["default_data_dir", "find_builder", "from_tfds", "num_classes"]

logger = logging.getLogger(__name__)

# A split up to this size is read into memory, where its rows can be found by number.
MEMORY_LIMIT = 512 * 2**20

# The number of stripes divides this, so that many numbers of workers divide the stripes.
_MOST_STRIPES = 24
# With fewer rows a stripe is not worth the files it opens.
_ROWS_OF_A_STRIPE = 20

_NAME = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(/(?P<config>[^:/]+))?(:(?P<version>[\w.*]+))?\Z")
_DECODED_LATE = (tfds.features.Image, tfds.features.Video, tfds.features.Audio)
_EMBEDDED = digits_dataset_builder.Builder.name


def default_data_dir() -> str:
    """The folder of prepared data sets: TFDS_DATA_DIR, or `tensorflow_datasets` at home."""
    return os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def find_builder(name: str, data_dir: str | None = None) -> Any:
    """Finds a data set by `name`, `name/config` or `name/config:version`.

    Args:
        name: the data set; case does not matter.
        data_dir: where data sets are prepared; None for the default.

    Returns:
        Its builder; nothing is prepared.

    Raises:
        DataError: there is no such data set, configuration or version.
    """
    data_dir = os.path.abspath(os.path.expanduser(data_dir or default_data_dir()))
    match = _NAME.match(name.strip().lower())
    known = tfds.list_builders(with_community_datasets=False)
    base = match["name"] if match else name
    prepared_there = match is not None and pathlib.Path(data_dir, base).is_dir()
    if match is None or (base not in known and not prepared_there):
        near = nearest(base, known)
        raise DataError(
            explain(
                "There is no such data set in TensorFlow Datasets",
                received=repr(name),
                fix=(f"Did you mean {near!r}? " if near else "")
                + f"{len(known)} are known, such as {_EMBEDDED!r} (needs no network), 'mnist', "
                "'cifar10'; `tfds.list_builders()` lists them",
            )
        )
    try:
        return tfds.builder(name.strip().lower(), data_dir=data_dir)
    except Exception as error:
        # TensorFlow Datasets raises ValueError, AssertionError and its own kinds here.
        raise DataError(
            explain(
                f"TensorFlow Datasets can't open {base!r} as asked: "
                + " ".join(str(error).split())[:400],
                received=repr(name),
                fix=f"Say {base!r} alone for the default configuration and version",
            )
        ) from None


def from_tfds(
    name: str,
    *,
    split: str,
    data_dir: str | None = None,
    in_memory: bool = True,
    as_supervised: bool | None = None,
    stripes_for: int | None = None,
    timeout: float = prepare.PREPARE_TIMEOUT,
) -> Rows | Stream | Stripes:
    """Opens a split of a data set, and prepares the data set first where needed.

    Args:
        name: the data set, such as "digits" or "name/config:version".
        split: the split; TensorFlow Datasets' slices such as "train[:80%]" are understood.
        data_dir: where data sets are prepared; None for the default.
        in_memory: whether a split that is small enough is read into memory.
        as_supervised: pairs of input and label instead of a dict of all features; None means
            pairs where the data set defines them.
        stripes_for: the global batch, if a split that is not in memory may be read in stripes.
        timeout: deadline of the preparation, in seconds.

    Returns:
        The rows, if they are in memory; else a stream or stripes. Their images are decoded only
        for the rows that a worker keeps.

    Raises:
        DataError: the data set or split does not exist, or can't be prepared.
    """
    builder = find_builder(name, data_dir)
    prepare.ensure_prepared(builder, timeout=timeout)
    # Opened anew: one that was opened before another process prepared the data knows no splits.
    builder = find_builder(name, data_dir)
    info = _split_info(builder, split, name)
    if as_supervised is None:
        as_supervised = builder.info.supervised_keys is not None
    elif as_supervised and builder.info.supervised_keys is None:
        raise DataError(
            explain(
                f"{name!r} does not define pairs of input and label",
                received="as_supervised=True",
                fix="Leave it out: the rows are dicts of "
                + ", ".join(map(repr, builder.info.features)),
            )
        )
    title = f"{builder.info.full_name}[{split}]"
    if in_memory and _fits(builder, info.num_examples, as_supervised):
        arrays = tfds.as_numpy(_read(builder, split, as_supervised, batch_size=-1))
        return from_arrays(arrays, name=title)
    late = _late_decoders(builder, as_supervised)
    decode = _decode(builder, late, as_supervised) if late else None

    def read(part: Any, count: int) -> tf.data.Dataset:
        dataset = _read(builder, part, as_supervised, decoders=late or None)
        return dataset.apply(tf.data.experimental.assert_cardinality(count))

    stripes = _number_of_stripes(info, stripes_for) if stripes_for else 1
    if stripes == 1:
        return Stream(read(split, info.num_examples), decode=decode, name=title)
    parts = tfds.even_splits(split, stripes)
    counts = tuple(builder.info.splits[part].num_examples for part in parts)
    return Stripes(tuple(map(read, parts, counts)), counts, decode, title)


def _number_of_stripes(info: Any, batch: int) -> int:
    """Number of stripes: a divisor of the batch, and each has at least a file of its own.

    A file is read from its beginning, so stripes that share one would read it several times.
    """
    most = min(len(info.file_instructions), info.num_examples // _ROWS_OF_A_STRIPE)
    common = math.gcd(batch, _MOST_STRIPES)
    return max(n for n in range(1, common + 1) if common % n == 0 and (n == 1 or n <= most))


def num_classes(name: str, data_dir: str | None = None) -> int:
    """Number of labels of a data set, for the size of a classifier's last layer.

    Args:
        name: the data set; it need not be prepared.
        data_dir: where data sets are prepared; None for the default.

    Returns:
        The number of classes of its supervised label, or else of its only label.

    Raises:
        DataError: the data set does not exist, or has no label with a number of classes.
    """
    features = find_builder(name, data_dir).info.features
    labels = {
        key: feature.num_classes
        for key, feature in features.items()
        if isinstance(feature, tfds.features.ClassLabel) and feature.num_classes
    }
    if "label" in labels:
        return labels["label"]
    if len(labels) != 1:
        raise DataError(
            explain(
                f"The data set {name!r} does not tell its number of classes",
                received=f"features {', '.join(features)}",
                fix="Give the number of classes yourself",
            )
        )
    return next(iter(labels.values()))


def _read(builder: Any, split: str, as_supervised: bool, **options: Any) -> Any:
    return builder.as_dataset(
        split=split,
        as_supervised=as_supervised,
        shuffle_files=False,
        read_config=tfds.ReadConfig(try_autocache=False, add_tfds_id=False),
        **options,
    )


def _split_info(builder: Any, split: str, name: str) -> Any:
    splits = builder.info.splits
    try:
        info = splits[split]
    except Exception as error:
        raise DataError(
            explain(
                f"The data set {name!r} has no such split",
                received=f"split={split!r}",
                fix="It has " + ", ".join(map(repr, splits)) + "; slices are written "
                f"'train[:80%]'. ({' '.join(str(error).split())[:160]})",
            )
        ) from None
    if not info.num_examples:
        raise DataError(
            explain(
                f"The split of {name!r} has no rows",
                received=f"split={split!r}",
                fix="Choose a larger slice",
            )
        )
    return info


def _spec(builder: Any, as_supervised: bool) -> Any:
    spec = builder.info.features.get_tensor_spec()
    if not as_supervised:
        return spec
    return tf.nest.map_structure(lambda key: spec[key], builder.info.supervised_keys)


def _fits(builder: Any, rows: int, as_supervised: bool) -> bool:
    return element_bytes(_spec(builder, as_supervised)) * rows <= MEMORY_LIMIT


def _plain_keys(builder: Any) -> tuple[str, ...] | None:
    """The features of a supervised row, if each of its parts is one feature."""
    keys = builder.info.supervised_keys or ()
    plain = isinstance(keys, tuple) and all(isinstance(key, str) for key in keys)
    return keys if plain else None


def _late_decoders(builder: Any, as_supervised: bool) -> dict[str, Any]:
    """Top-level features whose decoding is costly, with the mark that skips it."""
    features = builder.info.features
    keys = _plain_keys(builder) if as_supervised else tuple(features)
    return {
        key: tfds.decode.SkipDecoding()
        for key in keys or ()
        if isinstance(features[key], _DECODED_LATE)
    }


def _decode(builder: Any, late: dict[str, Any], as_supervised: bool) -> Callable[..., Any]:
    features = builder.info.features

    def value_of(key: str, value: Any) -> Any:
        return features[key].decode_example(value) if key in late else value

    def decode(*element: Any) -> Any:
        if as_supervised:
            return tuple(map(value_of, _plain_keys(builder) or (), element))
        return {key: value_of(key, value) for key, value in element[0].items()}

    return decode
