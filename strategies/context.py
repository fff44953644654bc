"""What TensorFlow's public API does not tell about the process's runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.eager import context

__all__ = ["global_seed", "is_initialized", "present_seed"]


def is_initialized() -> bool:
    """Returns whether TensorFlow has initialised its devices, so that they can't be changed.

    Stands in for a public query; upstream only raises from the setters in `tf.config`.
    """
    return bool(getattr(context.context(), "_initialized", False))


def present_seed() -> int | None:
    """Returns what `tf.random.set_seed` was given last, or None; it has no public getter."""
    return context.global_seed()


@contextlib.contextmanager
def global_seed(seed: int | None) -> Iterator[None]:
    """Runs a block under another global seed, and restores the one before.

    Stands in for reading `tf.random.set_seed`'s value, which has no public getter.

    Args:
        seed: the seed of the block; nothing is changed when None.
    """
    if seed is None:
        yield
        return
    before = context.global_seed()
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        context.set_global_seed(before)
