"""CSVLogger, TensorBoard and RemoteMonitor: the chief logs for the job.

They are silenced rather than taken out of the list of callbacks, because a subclass may do more
than log, such as adding to `logs`, which has to happen on every worker alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_bridge.marks import strategy_of
from tfdist.keras_bridge.patching import Repair

__all__ = ["REPAIRS"]


def _is_silent(callback: Any) -> bool:
    model = getattr(callback, "_model", None)
    strategy = strategy_of(model)
    return strategy is not None and not strategy.tfdist.is_chief


def _chief_only(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    return None if _is_silent(self) else original(self, *args, **kwargs)


def _set_model(original: Callable[..., Any], self: Any, model: Any) -> None:
    """Gives the other workers writers that write nothing, and a folder for their own profiles."""
    strategy = strategy_of(model)
    if strategy is None or strategy.tfdist.is_chief:
        original(self, model)
        return
    kept = self.log_dir, self.write_graph, self.embeddings_freq
    self.log_dir = os.path.join(self.log_dir, f"worker-{strategy.tfdist.rank}")
    self.write_graph, self.embeddings_freq = False, 0
    try:
        original(self, model)
    finally:
        self.log_dir, self.write_graph, self.embeddings_freq = kept
    noop = tf.summary.create_noop_writer()
    self._writers = {"train": noop, "val": noop}


def _log_embeddings(original: Callable[..., Any], self: Any, epoch: int) -> None:
    """Saves to the chief's path on every worker: a save is something all take part in."""
    kept = self._log_write_dir
    if _is_silent(self):
        self._log_write_dir = self.log_dir
    try:
        original(self, epoch)
    finally:
        self._log_write_dir = kept


_CSV = "keras.src.callbacks.csv_logger:CSVLogger"
_TENSORBOARD = "keras.src.callbacks.tensorboard:TensorBoard"
_ONE_LOG = "every worker writes the same log (tensorflow issue 49852)"

REPAIRS = (
    Repair(_CSV, "on_train_begin", _ONE_LOG, _chief_only),
    Repair(_CSV, "on_epoch_end", _ONE_LOG, _chief_only),
    Repair(_CSV, "on_train_end", _ONE_LOG, _chief_only),
    Repair(
        "keras.src.callbacks.remote_monitor:RemoteMonitor", "on_epoch_end", _ONE_LOG, _chief_only
    ),
    Repair(_TENSORBOARD, "set_model", _ONE_LOG, _set_model),
    Repair(_TENSORBOARD, "_log_embeddings", _ONE_LOG, _log_embeddings),
)

# Built-in callbacks that print a line when `verbose` is set.
PRINTING = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
)
