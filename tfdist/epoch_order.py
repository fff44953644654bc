"""Which epoch a shuffled data set is in: what `fit` and the data pipeline tell each other.

The order of a shuffled data set is a function of its seed and the number of its epoch. By itself a
data set counts the iterators that are made of it. That count goes wrong where one worker looks at the
data once more than the others (a chief that prints a batch), and where a job resumes at epoch 7 in a
new process. So `fit` under a tfdist strategy says which epoch begins:

    fit(epochs=3)                         orders 0 1 2
    fit(epochs=3) a second time           orders 3 4 5
    fit(initial_epoch=2, epochs=4)        orders 2 3      in a new process, after a failure
"""

from __future__ import annotations

import weakref
from typing import Protocol

__all__ = ["Follower", "begin_epoch", "begin_fit", "end_fit", "follow"]


class Follower(Protocol):
    """A data set's counter of epochs."""

    def get(self) -> int:
        """The number that the next iterator takes."""

    def set(self, epoch: int) -> None:
        """Makes `epoch` that number."""


class _Course:
    """Where one follower stands.

    Attributes:
        unused: the first number that no fit has used.
        offset: what is added to an epoch's number in the present fit.
        told: the number it was last given.
        used: whether an iterator took a number that it was given in the present fit.
    """

    def __init__(self) -> None:
        self.unused = 0
        self.offset = 0
        self.told: int | None = None
        self.used = False


_courses: weakref.WeakKeyDictionary[Follower, _Course] = weakref.WeakKeyDictionary()
_first_epoch: int | None = None


def follow(follower: Follower) -> None:
    """Lets a counter be told of epochs as long as it lives."""
    _courses[follower] = _Course()


def begin_fit() -> None:
    """Says that a fit begins; its first `begin_epoch` tells where."""
    global _first_epoch
    _first_epoch = None
    for course in list(_courses.values()):
        course.told, course.used = None, False


def begin_epoch(epoch: int) -> None:
    """Says that an epoch of the present fit is about to read its first batch.

    Args:
        epoch: its number, from `initial_epoch` on.
    """
    global _first_epoch
    if _first_epoch is None:
        _first_epoch = epoch
    for follower, course in list(_courses.items()):
        if course.told is None:
            course.offset = max(0, course.unused - _first_epoch)
        elif follower.get() != course.told:
            course.used = True
        course.told = epoch + course.offset
        follower.set(course.told)


def end_fit() -> None:
    """Says that the present fit has ended."""
    for follower, course in list(_courses.items()):
        if course.told is not None and (course.used or follower.get() != course.told):
            course.unused = course.told + 1
        course.told = None
