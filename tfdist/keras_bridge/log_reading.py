"""When the logs of a step are summed over the workers.

A sum over the network per step, for numbers that nobody looks at, is a good part of the time of a
small model's step. So `fit` asks its callbacks: if one of any worker reads the logs of each batch,
they are summed at every step. If only the progress bar shows them, they are summed about ten times a
second, at the same steps on all workers, and the steps between show the last ones. The logs of an
epoch come from the metrics themselves (see `trainer._metrics_or_logs`) and are exact either way.

    step      0  1  2  3  4  5  6  7  8 ...
    summed    x  x           x           x      (here every 4 steps make a tenth of a second)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src.utils.python_utils import is_default

__all__ = ["LogReading", "at_each_step", "of", "reads_each_batch"]

_PERIOD = 0.1  # seconds between two readings
_MOST = 1000  # steps between two readings, at most
_BATCH_METHODS = ("on_train_batch_end", "on_test_batch_end", "on_batch_end")


class LogReading:
    """Decides, equally on all workers, at which steps logs are read.

    Attributes:
        always: whether they are read at each step, because a callback does.
        own_logs: whether a step returns other logs than the model's metrics, so that only the step
            knows them.
    """

    def __init__(self) -> None:
        self.always = True
        self.own_logs = False
        self.restart()

    def restart(self) -> None:
        """Begins an epoch, or an evaluation: its first step is read."""
        self._interval = 1
        self._left = 0
        self._began: float | None = None

    def begin_step(self) -> bool:
        """Returns whether this step's logs are read."""
        return self.always or self.own_logs or self._left <= 0

    def seconds(self) -> float:
        """Returns the seconds since the last reading; 0 where there is none."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    def end_step(self, was_read: bool, mean_seconds: float) -> None:
        """Counts a step.

        Args:
            was_read: whether its logs were read.
            mean_seconds: what `seconds()` was on the mean of all replicas, if they were. All workers
                see the same number, so that they take the same decisions.
        """
        if not was_read:
            self._left -= 1
            return
        if mean_seconds > 0:
            per_step = mean_seconds / self._interval
            self._interval = max(1, min(_MOST, int(_PERIOD / per_step)))
        self._left = self._interval - 1
        self._began = time.perf_counter()


def of(model: Any) -> LogReading:
    """Returns the model's own."""
    reading = getattr(model, "_tfdist_log_reading", None)
    if reading is None:
        reading = LogReading()
        object.__setattr__(model, "_tfdist_log_reading", reading)
    return reading


@contextlib.contextmanager
def at_each_step(model: Any) -> Iterator[None]:
    """Reads the logs of each step of a block, as far as it does not decide for itself; and after it.

    Args:
        model: the model whose `fit`, `evaluate` or `predict` the block calls.
    """
    reading = of(model)
    before, reading.always = reading.always, True
    try:
        yield
    finally:
        reading.always = before
        reading.restart()


def reads_each_batch(callback: Any) -> bool:
    """Returns whether a callback may use the logs of each batch.

    One with a batch method of its own does, unless it says `reads_batch_logs = False`.

    Args:
        callback: a `keras.callbacks.Callback`.
    """
    if not getattr(callback, "reads_batch_logs", True):
        return False
    methods = [getattr(callback, name, None) for name in _BATCH_METHODS]
    return any(_reads(callback, one) for one in methods if one is not None and not is_default(one))


def _reads(callback: Any, method: Any) -> bool:
    function = getattr(method, "__func__", method)
    for kind, reads in _BUILT_IN.items():
        if any(function is vars(kind).get(name) for name in _BATCH_METHODS):
            return reads(callback)
    return True


_BUILT_IN: dict[Any, Callable[[Any], bool]] = {
    keras.callbacks.ProgbarLogger: lambda callback: False,  # shows them, but need not be exact
    keras.callbacks.BackupAndRestore: lambda callback: False,
    keras.callbacks.ModelCheckpoint: lambda callback: callback.save_freq != "epoch",
    keras.callbacks.TensorBoard: lambda callback: callback.update_freq != "epoch",
}
