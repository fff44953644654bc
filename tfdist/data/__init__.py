"""The data sets and the input pipeline behind `Runtime.dataset`."""

from __future__ import annotations

from tfdist.data.clicks import Clicks, synthetic_clicks
from tfdist.data.making import info_of, make_dataset, steps_per_epoch
from tfdist.data.plans import DEFAULT_SEED, DataInfo
from tfdist.data.preview import Preview, preview_shards
from tfdist.data.shares import Share
from tfdist.data.text import next_byte, text_rows

__all__ = [
    "DEFAULT_SEED",
    "Clicks",
    "DataInfo",
    "Preview",
    "Share",
    "info_of",
    "make_dataset",
    "next_byte",
    "num_classes",
    "preview_shards",
    "steps_per_epoch",
    "synthetic_clicks",
    "text_rows",
]


def num_classes(name: str, data_dir: str | None = None) -> int:
    """Number of labels of a TFDS data set; see `tfdist.data.tfds_source.num_classes`."""
    from tfdist.data import tfds_source  # imports TensorFlow Datasets only when it is needed

    return tfds_source.num_classes(name, data_dir)
