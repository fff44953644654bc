"""Which model predicts from the epoch iterator that Keras makes next."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["current", "predicting"]

_LookAhead = Callable[[Iterator[Any]], Iterator[Any]]

_current: contextvars.ContextVar[_LookAhead | None] = contextvars.ContextVar(
    "tfdist_look_ahead", default=None
)


@contextlib.contextmanager
def predicting(look_ahead: _LookAhead | None) -> Iterator[None]:
    """Gives the epoch iterators that are made in the block a way to predict ahead.

    Keras makes the iterator before it asks for outputs, and asks for one batch after the other.

    Args:
        look_ahead: turns batches into outputs, in their order; None changes nothing.
    """
    token = _current.set(look_ahead)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> _LookAhead | None:
    """Returns what `predicting` was given."""
    return _current.get()
