"""Keras callbacks that know about replicas and workers, and the set that a job needs.

Keras' own file-writing callbacks need no replacement here: under a tfdist strategy they are given
one path on every worker, the chief writes, and every write is whole or not at all.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import keras
import psutil

from tfdist.config import Config
from tfdist.keras_bridge.nan_guard import NanGuard

__all__ = [
    "BestCheckpoint",
    "MemoryGuard",
    "NanGuard",
    "StopOnNaN",
    "Throughput",
    "current_learning_rate",
    "default_callbacks",
    "steady_growth",
]

logger = logging.getLogger(__name__)

_MB = 2**20
_DEFAULT_BATCH = 32


def default_callbacks(
    config: Config, strategy: Any, *, monitor: str | None = None, mode: str = "auto"
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that a job's `fit` should have; the same on every worker.

    Always `StopOnNaN` and a line on throughput; `BackupAndRestore` when
    `recovery.backup_dir` is set; the best and the last model when `recovery.checkpoint_dir` is;
    TensorBoard and a CSV of the history when `recovery.log_dir` is.

    Args:
        config: the job's settings.
        strategy: the job's strategy.
        monitor: what the best model is chosen by; `val_loss`, or `loss` without validation, when
            None.
        mode: "min", "max" or "auto", as in Keras.

    Returns:
        A new list, to be passed to `fit`, alone or with more callbacks in front of it.
    """
    recovery = config.recovery
    # A run that ends with NaN must not delete its backup as if it had finished; and a backup within
    # an epoch must not be taken before each batch was looked at.
    stop = StopOnNaN if recovery.backup_freq == "epoch" else keras.callbacks.TerminateOnNaN
    callbacks: list[keras.callbacks.Callback] = [stop(raise_error=recovery.backup_dir is not None)]
    if recovery.checkpoint_dir is not None:
        best = os.path.join(recovery.checkpoint_dir, "best.keras")
        last = os.path.join(recovery.checkpoint_dir, "last.keras")
        callbacks.append(BestCheckpoint(best, monitor=monitor, mode=mode))
        callbacks.append(keras.callbacks.ModelCheckpoint(last))
    if recovery.log_dir is not None:
        callbacks += _loggers(recovery.log_dir, strategy, resumes=recovery.backup_dir is not None)
    if recovery.backup_dir is not None:
        callbacks.append(
            keras.callbacks.BackupAndRestore(recovery.backup_dir, save_freq=recovery.backup_freq)
        )
    quiet = config.verbose in (0, "0") or not strategy.tfdist.is_chief
    callbacks.append(Throughput(_global_batch(config, strategy), verbose=0 if quiet else 1))
    return callbacks


def current_learning_rate(model: keras.Model) -> float:
    """Returns the learning rate that a model's next step will use.

    Works for a constant, a schedule, a callback's change, and an optimizer that mixed precision
    has wrapped; under any strategy.

    Args:
        model: a compiled model.
    """
    optimizer = model.optimizer
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


class BestCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keeps the best model; by `val_loss` where there is validation, else by `loss`.

    Args:
        filepath: as `ModelCheckpoint`'s.
        monitor: as `ModelCheckpoint`'s; chosen at the end of the first epoch when None.
        **kwargs: further arguments of `ModelCheckpoint`.
    """

    def __init__(self, filepath: Any, monitor: str | None = None, **kwargs: Any) -> None:
        super().__init__(filepath, monitor=monitor or "val_loss", save_best_only=True, **kwargs)
        self._chooses = monitor is None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Chooses what to monitor, once."""
        if self._chooses:
            self._chooses = False
            self.monitor = "val_loss" if "val_loss" in (logs or {}) else "loss"
        super().on_epoch_end(epoch, logs)


class StopOnNaN(keras.callbacks.TerminateOnNaN):
    """Stops training when the loss is NaN or infinite, without asking for the logs of each batch.

    Keras' `TerminateOnNaN` reads the loss of every batch, for which several workers have to add it
    up at every step. Once NaN, an epoch's mean loss stays so: this looks at the logs as often as
    they are there anyway, and at the end of every epoch, before backups and checkpoints.
    """

    reads_batch_logs = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Looks at the epoch's loss.

        Raises:
            RuntimeError: it is NaN or infinite, and `raise_error` is set.
        """
        loss = (logs or {}).get("loss")
        if loss is None or math.isfinite(loss) or self.model.stop_training:
            return
        text = f"The mean loss of epoch {epoch + 1} is {loss}: training stops"
        if self.raise_error:
            raise RuntimeError(text)
        logger.warning("%s", text)
        self.model.stop_training = True


class Throughput(keras.callbacks.Callback):
    """Prints one line per epoch: steps and examples per second, without validation.

    The first step of a `fit`, in which the step function is traced, is not counted.

    Args:
        global_batch_size: examples in a step over all replicas; only steps are told when None.
        verbose: 0 prints nothing.

    Attributes:
        history: one dict per epoch: "epoch", "steps", "seconds", "steps_per_second", and, with a
            batch size, "examples_per_second".
    """

    reads_batch_logs = False

    def __init__(self, global_batch_size: int | None = None, verbose: int = 1) -> None:
        super().__init__()
        self.global_batch_size = global_batch_size
        self.verbose = verbose
        self.history: list[dict[str, float]] = []
        self._line: str | None = None
        self._traced = False
        self._began: float | None = None
        self._ended = 0.0
        self._steps = 0
        self._next_step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets an earlier run."""
        self.history = []
        self._traced = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Prints the line of the epoch before: now the progress bar is out of the way."""
        self._print()
        self._steps = 0
        self._began = time.perf_counter() if self._traced else None
        self._next_step = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the steps of an execution."""
        self._ended = time.perf_counter()
        if self._began is None:
            self._began, self._traced = self._ended, True
        else:
            self._steps += batch + 1 - self._next_step
        self._next_step = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Takes down the epoch's figures."""
        if self._began is None or not self._steps:
            return
        seconds = max(self._ended - self._began, 1e-9)
        rate = self._steps / seconds
        entry: dict[str, float] = {
            "epoch": epoch,
            "steps": self._steps,
            "seconds": seconds,
            "steps_per_second": rate,
        }
        text = f"epoch {epoch + 1}: {self._steps} steps in {seconds:.2f} s, {rate:,.1f} steps/s"
        if self.global_batch_size is not None:
            entry["examples_per_second"] = rate * self.global_batch_size
            text += f", {rate * self.global_batch_size:,.0f} examples/s"
        self.history.append(entry)
        self._line = text

    def on_train_end(self, logs: Any = None) -> None:
        """Prints the last line."""
        self._print()

    def _print(self) -> None:
        if self._line is not None and self.verbose:
            print(self._line, flush=True)
        self._line = None


class MemoryGuard(keras.callbacks.Callback):
    """Warns once when the process's memory grows steadily, epoch after epoch.

    Args:
        limit: growth in megabytes per epoch that is worth a warning.
        warmup: epochs at the start that don't count: caches fill and functions are traced.
        window: epochs that the growth has to last for.

    Attributes:
        samples: the resident memory in megabytes after each epoch.
    """

    def __init__(self, limit: float = 1.0, warmup: int = 3, window: int = 10) -> None:
        super().__init__()
        self.limit = limit
        self.warmup = warmup
        self.window = window
        self.samples: list[float] = []
        self._warned = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Takes a sample, and looks at the last ones."""
        self.samples.append(psutil.Process().memory_info().rss / _MB)
        recent = self.samples[self.warmup :][-self.window :]
        if self._warned or len(recent) < self.window:
            return
        growth = steady_growth(recent)
        if growth is not None and growth > self.limit:
            self._warned = True
            logger.warning(
                "The memory of this process grows steadily: by %.1f MB per epoch over the last %d "
                "epochs, to %.0f MB. Usual causes: lists or tensors kept by a callback, a "
                "tf.function traced anew each epoch, .repeat() or .cache() added in each epoch "
                "instead of once in the pipeline.",
                growth,
                self.window,
                recent[-1],
            )


def steady_growth(samples: Sequence[float]) -> float | None:
    """Returns the growth per sample if the samples grow steadily, else None.

    Steady means that both halves grow, and that nearly all of the change lies on one line: a
    single jump, or a level that is noisy, is not a leak.

    Args:
        samples: measurements at equal distances, at least four.
    """
    n = len(samples)
    if n < 4:
        return None
    half = n // 2
    if samples[half] <= samples[0] or samples[-1] <= samples[half]:
        return None
    middle, mean = (n - 1) / 2, sum(samples) / n
    spread = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * (s - mean) for i, s in enumerate(samples)) / spread
    total = sum((s - mean) ** 2 for s in samples)
    explained = slope**2 * spread / total
    return slope if slope > 0 and explained > 0.8 else None


def _global_batch(config: Config, strategy: Any) -> int:
    if config.per_replica_batch_size is not None:
        return config.per_replica_batch_size * strategy.num_replicas_in_sync
    return config.global_batch_size or _DEFAULT_BATCH


def _loggers(log_dir: str, strategy: Any, resumes: bool) -> list[keras.callbacks.Callback]:
    if strategy.tfdist.is_chief and "://" not in log_dir:
        os.makedirs(log_dir, exist_ok=True)  # CSVLogger does not make it
    history = os.path.join(log_dir, "history.csv")
    return [
        keras.callbacks.TensorBoard(log_dir),
        keras.callbacks.CSVLogger(history, append=resumes),
    ]
