"""Text as rows of bytes, for language models that predict the next byte.

text   The "assert" statement ...
row 0  The "ass          rows of length + 1 bytes, of which the model sees the first `length` and
row 1         sert" st   predicts the last `length`; a row's last byte is the next row's first
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.errors import DataError, explain

__all__ = ["next_byte", "text_rows"]

# Every tenth row is held out: the text's last tenth may be about something else.
_TEST_EVERY = 10


def text_rows(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    length: int,
    split: str = "train",
) -> np.ndarray:
    """Cuts text files into rows of bytes.

    Every tenth row is in the split "test", the others are in "train".

    Args:
        paths: text files, one or several, which are read one after the other; None takes the
            English text that Python's own help shows (`pydoc_data.topics`, about 460 kB, a little
            different in each version of Python).
        length: bytes that the model sees of a row.
        split: "train", "test", or "all".

    Returns:
        uint8, [rows, length + 1], for `Runtime.dataset(rows, map_fn=next_byte)`.

    Raises:
        DataError: a file can't be read, or there is too little text.
    """
    if split not in ("train", "test", "all"):
        raise DataError(
            explain(
                "Text has the splits train, test and all",
                received=f"split={split!r}",
                fix="Use one of them",
            )
        )
    if length < 1:
        raise DataError(
            explain("A row needs a byte", received=f"length={length}", fix="Use length >= 1")
        )
    text = np.frombuffer(_read(paths), dtype=np.uint8)
    needed = _TEST_EVERY * length + 1
    if len(text) < needed:
        raise DataError(
            explain(
                f"There is too little text for {_TEST_EVERY} rows",
                received=f"{len(text)} bytes, length={length}",
                fix=f"Give at least {needed} bytes, or a smaller length",
            )
        )
    rows = np.lib.stride_tricks.sliding_window_view(text, length + 1)[::length]
    if split == "all":
        return rows
    held_out = np.arange(len(rows)) % _TEST_EVERY == _TEST_EVERY - 1
    return rows[held_out if split == "test" else ~held_out]


def next_byte(row: Any) -> tuple[Any, Any]:
    """Makes a row of bytes a pair for `fit`: what is seen, and the byte that follows each.

    Args:
        row: uint8, [length + 1].

    Returns:
        Two int32 tensors, [length].
    """
    row = tf.cast(row, tf.int32)
    return row[:-1], row[1:]


def _read(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> bytes:
    if paths is None:
        from pydoc_data.topics import topics

        return "\n\n".join(topics[name].strip() for name in sorted(topics)).encode()
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    parts = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                parts.append(file.read())
        except OSError as error:
            raise DataError(
                explain(
                    "A text file can't be read",
                    received=f"{os.fspath(path)}: {error.strerror}",
                    fix="Check the path",
                )
            ) from None
    return b"\n".join(parts)
