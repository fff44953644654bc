"""Starting in the middle of an epoch.

A backup that was taken after step k of an epoch is resumed by passing over the epoch's first k
batches, without training on them and without calling callbacks. With data whose order is the same
in every run, each batch is then trained on exactly once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.keras_bridge.marks import is_tfdist
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS", "resume_at", "start_epoch"]

_STEP = "_tfdist_resume_step"
_to_skip: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def resume_at(model: Any, step: int) -> None:
    """Makes the model's next epoch of training begin after its first `step` steps."""
    object.__setattr__(model, _STEP, step)


def start_epoch(model: Any, strategy: Any) -> None:
    """Hands a noted step over to the epoch that is about to begin.

    Called as the last thing before an epoch's first batch, so that an `evaluate` in some callback
    before it keeps all its batches.
    """
    step = getattr(model, _STEP, 0)
    if step:
        object.__setattr__(model, _STEP, 0)
        _to_skip[strategy] = step


def _enumerate(original: Callable[..., Any], self: Any) -> Iterator[tuple[int, int, Any]]:
    strategy = getattr(self, "_distribute_strategy", None)
    skip = _to_skip.pop(strategy, 0) if is_tfdist(strategy) else 0
    for begin, end, iterator in original(self):
        if begin < skip:
            for _ in range(self.steps_per_execution):
                next(iterator)
        else:
            yield begin, end, iterator


REPAIRS = (
    Repair(
        "keras.src.trainers.epoch_iterator:EpochIterator",
        "_enumerate_iterator",
        "BackupAndRestore with an integer save_freq trains an interrupted epoch's batches twice",
        _enumerate,
    ),
)
