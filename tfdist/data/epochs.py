"""The order of rows in each epoch: a function of the seed and the epoch's number, nothing else.

Every shuffled data set draws the number of its epoch when an iterator starts: 0 for the first one,
1 for the next, and so on. Workers that iterate alike therefore shuffle alike; `fit` under a tfdist
strategy sets the number besides (see `tfdist.epoch_order`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import tensorflow as tf

from tfdist import epoch_order

__all__ = ["EpochCounter", "per_epoch"]

_numbers = itertools.count()


class EpochCounter:
    """A number that every iterator of a data set takes and increments.

    It is a resource rather than a tf.Variable, because a tf.Variable made under a strategy's scope
    becomes a distributed one, which an input pipeline can't read.
    """

    def __init__(self, start: int = 0) -> None:
        """Creates the counter in host memory.

        Args:
            start: the number that the first iterator takes.
        """
        with tf.init_scope(), tf.device("CPU:0"):
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[], shared_name=f"tfdist_epoch_{next(_numbers)}"
            )
        self.set(start)
        epoch_order.follow(self)

    def get(self) -> int:
        """The number that the next iterator takes."""
        with tf.init_scope(), tf.device("CPU:0"):
            return int(tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64))

    def set(self, epoch: int) -> None:
        """Makes `epoch` the number of the next iterator."""
        with tf.init_scope(), tf.device("CPU:0"):
            tf.raw_ops.AssignVariableOp(
                resource=self._handle, value=tf.constant(epoch, dtype=tf.int64)
            )

    def take(self) -> tf.Tensor:
        """Returns the number and increments it; called inside the pipeline."""
        one = tf.constant(1, dtype=tf.int64)
        tf.raw_ops.AssignAddVariableOp(resource=self._handle, value=one)
        return tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64) - one


@tf.autograph.experimental.do_not_convert
def per_epoch(
    make: Callable[[tf.Tensor], tf.data.Dataset], *, start: int = 0, repeat: bool = False
) -> tf.data.Dataset:
    """Builds a data set anew for every epoch.

    Args:
        make: returns the data set of an epoch, given its number, a scalar int64 tensor.
        start: number of the first epoch.
        repeat: whether an iterator goes on with the next epoch, without end.

    Returns:
        The data set. An iterator takes the counter's number once, when its first element is
        asked for; with `repeat` it counts on from there by itself, so that what is prefetched
        beyond the last step does not change the count.
    """
    counter = EpochCounter(start)
    first = tf.data.Dataset.from_tensors(0).map(lambda _: counter.take())
    if not repeat:
        return first.flat_map(make)
    return first.flat_map(lambda epoch: tf.data.Dataset.counter(epoch).flat_map(make))
