"""What a replica knows of the step it is in: its rows, the global batch's, and its weight.

The bridge keeps to one convention inside `fit`, `evaluate` and the `*_on_batch` methods. With N
replicas, n rows in the global batch and n_r of them on replica r, a value L_r that code in a step
computes is meant so that the one-device value is the MEAN of the L_r over the replicas:

    mean over the rows      L_r = mean_r * w_r,     w_r = N * n_r / n
    sum over the rows       L_r = N * sum_r

Even shares have w_r = 1, so a `train_step` written for one device is right as it stands. Gradients
are averaged over the replicas. Outside such a step (a hand-written `strategy.run` loop) Keras'
own convention holds: losses are divided by N and gradients are summed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.errors import UnsupportedError, explain

__all__ = [
    "BatchContext",
    "current",
    "entered",
    "local_updates",
    "local_updates_active",
    "refuse_between_workers",
    "replica_sum",
]


class CollectiveInJit(Exception):  # not an error: it asks for a trace without XLA
    """A step compiled by XLA needs a sum over the replicas in its forward pass."""


@dataclasses.dataclass
class BatchContext:
    """The step that a replica is in.

    Attributes:
        num_replicas: N.
        rows: n_r, an int when static, else a scalar int32 tensor.
        global_rows: n, likewise.
        part: which of the N this is, where tf.distribute does not know of them; else None.
        jit: whether the step is being compiled by XLA, where no collective can run.
        weighted: whether a Keras loss has carried w_r into the step's loss.
        divided: whether the step's loss was divided by N before its backward pass.
        in_compile_loss: whether `compile`'s losses are being computed.
        in_own_code: whether a `compute_loss` or `compute_metrics` of the user's is being called.
        own_logs: names of the logs that are weighted already (see `own_code`).
        loss_stack: the Keras losses being called, outermost first.
    """

    num_replicas: int
    rows: Any
    global_rows: Any
    part: Any = None
    jit: bool = False
    weighted: bool = False
    divided: bool = False
    in_compile_loss: bool = False
    in_own_code: bool = False
    own_logs: set[str] = dataclasses.field(default_factory=set)
    loss_stack: list[Any] = dataclasses.field(default_factory=list)

    @property
    def is_even(self) -> bool:
        """Whether every replica is known to have the same number of rows."""
        return (
            isinstance(self.rows, int)
            and isinstance(self.global_rows, int)
            and self.rows * self.num_replicas == self.global_rows
        )

    def weight(self, dtype: Any = tf.float32) -> Any:
        """Returns w_r = N * n_r / n as a scalar of `dtype`; 1.0 when the shares are even."""
        if self.is_even:
            return 1.0
        share = tf.cast(self.rows, tf.float32) / tf.cast(self.global_rows, tf.float32)
        return tf.cast(share * self.num_replicas, dtype)

    def times_weight(self, value: Any) -> Any:
        """Returns `value * w_r`, which is 0 on a replica without rows even if `value` is NaN."""
        if self.is_even:
            return value
        return tf.math.multiply_no_nan(value, self.weight(value.dtype))

    def as_seen(self, value: Any) -> Any:
        """Returns L_r as the code that asks sees it: without w_r, if that is the user's."""
        if not self.in_own_code or self.in_compile_loss or self.is_even:
            return value
        return tf.math.divide_no_nan(value, self.weight(value.dtype))

    @property
    def has_rows(self) -> Any:
        """Whether this replica has rows: a bool where it is known, else a scalar bool tensor."""
        return self.rows > 0

    def only_with_rows(self, value: Any) -> Any:
        """Returns `value`, or 0 on a replica without rows, where it comes from a stand-in."""
        if self.has_rows is True:
            return value
        return tf.math.multiply_no_nan(value, tf.cast(self.has_rows, value.dtype))

    def gradient_factor(self, dtype: Any) -> Any:
        """Returns what a gradient is multiplied with before the sum over the replicas."""
        share = tf.constant(1.0 if self.divided else 1.0 / self.num_replicas, dtype)
        if self.is_even:
            return share
        if self.weighted:
            return tf.cast(tf.greater(self.rows, 0), dtype) * share
        return self.weight(dtype) * share


class _State(threading.local):
    """Per thread: tf.distribute runs each replica of a process in a thread of its own."""

    def __init__(self) -> None:
        self.context: BatchContext | None = None
        self.local_updates = False


_state = _State()


def current() -> BatchContext | None:
    """Returns the step that this thread's replica is in, or None outside of one."""
    return _state.context


@contextlib.contextmanager
def entered(context: BatchContext) -> Iterator[BatchContext]:
    """Makes `context` the current one for a block."""
    before = _state.context
    _state.context = context
    try:
        yield context
    finally:
        _state.context = before


@contextlib.contextmanager
def local_updates() -> Iterator[None]:
    """Runs a block in which a replica assigns to its own copy of every Keras variable.

    It is right where all replicas assign the same value, as after gradients have been summed, and
    it needs no merge of the replicas, so that it may stand in a `tf.cond`.
    """
    before = _state.local_updates
    _state.local_updates = True
    try:
        yield
    finally:
        _state.local_updates = before


def local_updates_active() -> bool:
    """Returns whether the thread is in a `local_updates` block."""
    return _state.local_updates


def replica_sum(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a tensor over all replicas, in replica context.

    Raises:
        CollectiveInJit: if the step is being compiled by XLA.
    """
    context = current()
    if context is not None and context.num_replicas == 1:
        return value
    if context is not None and context.jit:
        raise CollectiveInJit
    refuse_between_workers(context)
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, value)


def refuse_between_workers(context: BatchContext | None) -> None:
    """Refuses to add up in the middle of a step what parts of it compute on their own.

    Args:
        context: the step that the thread is in.

    Raises:
        UnsupportedError: the parts are the workers' of a synchronous parameter server.
    """
    if context is not None and context.part is not None and context.num_replicas > 1:
        raise UnsupportedError(
            explain(
                "The workers of parameter servers can't add anything up in the middle of a step",
                received="a masked or weighted-mean loss, or BatchNormalization(synchronized=True)",
                fix="Use strategy='multi_worker', or the loss without mask and the layer without "
                "synchronized",
            )
        )
