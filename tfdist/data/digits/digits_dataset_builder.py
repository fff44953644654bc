"""Builder of the `digits` data set: 1,797 images of handwritten digits that need no network.

The pixels of the source are integers from 0 to 16. They are divided by 16, so that an image is
float32 in [0, 1], exactly, and any Keras model can take it as it is.
"""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

__all__ = ["TEST_ROWS", "TRAIN_ROWS", "Builder", "read_rows", "split_rows"]

TRAIN_ROWS, TEST_ROWS = 1_437, 360
IMAGE_SHAPE = (8, 8, 1)
_FILE = pathlib.Path(__file__).with_name("digits.csv.gz")
_MAXIMUM = 16.0
_TEST_EVERY = 5


def read_rows() -> tuple[np.ndarray, np.ndarray]:
    """Reads the shipped file.

    Returns:
        The images, float32 [1797, 8, 8, 1] in [0, 1], and the labels, int64 [1797].
    """
    with gzip.open(_FILE, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    images = (table[:, :-1] / _MAXIMUM).astype(np.float32)
    return images.reshape((-1, *IMAGE_SHAPE)), table[:, -1]


def split_rows(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Divides the rows into `train` and `test`, every digit in proportion.

    Every fifth row of the rows sorted by digit is held out. No random numbers are involved, so
    the division is the same everywhere. Each part keeps the order of the file.

    Args:
        labels: the digit of each row, int64 [rows].

    Returns:
        The row numbers of each split.
    """
    by_digit = np.argsort(labels, kind="stable")
    held_out = by_digit[::_TEST_EVERY]
    return {
        "train": np.setdiff1d(np.arange(len(labels)), held_out),
        "test": np.sort(held_out),
    }


class Builder(tfds.core.GeneratorBasedBuilder):
    """UCI's optical recognition of handwritten digits, the 1,797 rows of its test set."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First release: 1,437 rows to train on, 360 held out."}  # noqa: RUF012

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=(
                "1,797 images of handwritten digits, 8x8 pixels, 10 classes, from the UCI Machine "
                "Learning Repository. Images are float32 in [0, 1]."
            ),
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Tensor(shape=IMAGE_SHAPE, dtype=np.float32),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
            citation=(
                "@misc{alpaydin1998digits, author={Alpaydin, E. and Kaynak, C.}, "
                "title={Optical Recognition of Handwritten Digits}, year={1998}, "
                "howpublished={UCI Machine Learning Repository}, doi={10.24432/C50P49}}"
            ),
            license="CC BY 4.0",
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager  # nothing to download
        images, labels = read_rows()
        return {
            name: self._generate_examples(images, labels, rows)
            for name, rows in split_rows(labels).items()
        }

    def _generate_examples(
        self, images: np.ndarray, labels: np.ndarray, rows: np.ndarray
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in rows:
            yield int(row), {"image": images[row], "label": int(labels[row])}
