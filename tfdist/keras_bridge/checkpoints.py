"""ModelCheckpoint and BackupAndRestore on one path that all workers share."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import h5py
from keras.src.utils import file_utils, io_utils

from tfdist.errors import SaveError, explain
from tfdist.keras_bridge import agreement, atomic, coordinator, resume
from tfdist.keras_bridge.marks import strategy_of
from tfdist.keras_bridge.patching import Repair
from tfdist.keras_bridge.saving import coordinated_save

__all__ = ["REPAIRS"]

# Where a backup notes how far training had come. Inside the weights file, so that one rename
# replaces both; Keras' own second file could be of another moment after a kill.
_METADATA = "tfdist_training_metadata"
_APPEAR = 10.0  # seconds in which a network file system shows a new file to other hosts


def _save_checkpoint(
    original: Callable[..., Any], self: Any, epoch: int, batch: int | None, logs: Any
) -> None:
    """Saves where the chief's monitored value says so, to the path that the chief formats."""
    strategy = strategy_of(self.model)
    coordinator.settle(self.model)
    if strategy is None or not agreement.is_shared(strategy):
        original(self, epoch, batch, logs)
        return

    def decide() -> dict[str, Any]:
        path = self._get_file_path(epoch, batch, logs)
        save = bool(self._should_save_model(epoch, batch, logs, path))
        folder = os.path.dirname(path)
        if save and folder and not file_utils.exists(folder):
            file_utils.makedirs(folder)
        best = None if self.best is None else float(self.best)
        return {"path": path, "save": save, "best": best}

    facts = agreement.chief_decides(strategy, "ModelCheckpoint", decide)
    self.best = facts["best"]
    if not facts["save"]:
        return
    if self.save_weights_only:
        self.model.save_weights(facts["path"], overwrite=True)
    else:
        self.model.save(facts["path"], overwrite=True)
    if self.verbose > 0 and strategy.tfdist.is_chief:
        io_utils.print_msg(f"\nEpoch {epoch + 1}: finished saving model to {facts['path']}")


def _back_up(original: Callable[..., Any], self: Any) -> None:
    """Backs up weights, optimizer and progress in one file."""
    strategy = strategy_of(self.model)
    if strategy is None:
        original(self)
        return
    step = 0 if self.save_freq == "epoch" else self._last_batch_seen + 1
    progress = {"epoch": self._current_epoch, "batch": self._last_batch_seen, "step": step}

    def prepare() -> dict[str, Any]:
        if not file_utils.exists(self.backup_dir):
            file_utils.makedirs(self.backup_dir)
        if self.double_checkpoint:
            _copy(self._weights_path, self._prev_weights_path)
            _copy(self._training_metadata_path, self._prev_training_metadata_path)
        return {}

    def note(path: str) -> None:
        if not file_utils.is_remote_path(path):
            with h5py.File(path, "r+") as file:
                file.attrs[_METADATA] = json.dumps(progress)

    agreement.chief_decides(strategy, "BackupAndRestore", prepare)
    coordinated_save(
        self.model,
        self._weights_path,
        "BackupAndRestore",
        lambda path: self.model.save_weights(path, overwrite=True),
        finish=note,
    )
    if strategy.tfdist.is_chief:  # for a stock Keras that resumes from here
        _write_text(self._training_metadata_path, json.dumps(progress))


def _restore(original: Callable[..., Any], self: Any, logs: Any = None) -> None:
    """Resumes all workers from the backup that the chief finds readable."""
    strategy = strategy_of(self.model)
    if strategy is None or not self.model.built:
        original(self, logs)
        return

    def decide() -> dict[str, Any]:
        return {"folder": os.fspath(self.backup_dir), "progress": _readable_backup(self)}

    decision = agreement.chief_decides(strategy, "BackupAndRestore", decide)
    _use_folder(self, decision["folder"])
    found = decision["progress"]
    if found is None:
        return
    _check_visible(strategy, self._weights_path, found)
    self.model.load_weights(self._weights_path)
    if "epoch" in found:
        epoch, step = found["epoch"], found.get("step", 0)
        steps = (self.params or {}).get("steps")
        if steps and step >= steps:  # backed up after the epoch's last batch
            epoch, step = epoch + 1, 0
        self.model._initial_epoch = self._current_epoch = epoch
        self._last_batch_seen = max(step - 1, 0)
        resume.resume_at(self.model, step)


def _note_epoch(original: Callable[..., Any], self: Any, epoch: int, logs: Any = None) -> None:
    """Keeps the epoch right after a resume, for backups in the middle of an epoch."""
    original(self, epoch, logs)
    if strategy_of(self.model) is not None:
        self._current_epoch = epoch


def _delete_backup(original: Callable[..., Any], self: Any, logs: Any = None) -> None:
    strategy = strategy_of(self.model)
    if strategy is None or strategy.tfdist.is_chief:
        original(self, logs)


def _use_folder(callback: Any, folder: str) -> None:
    """Takes the chief's folder: workers that were given folders of their own share one backup."""
    for name in (
        "_weights_path",
        "_training_metadata_path",
        "_prev_weights_path",
        "_prev_training_metadata_path",
    ):
        file_name = os.path.basename(getattr(callback, name))
        setattr(callback, name, file_utils.join(folder, file_name))
    callback.backup_dir = folder


def _readable_backup(callback: Any) -> dict[str, Any] | None:
    """Returns the progress of the latest readable backup, which is made the current one.

    Raises:
        SaveError: if there are backups, but none can be read.
    """
    current, previous = callback._weights_path, callback._prev_weights_path
    if file_utils.is_remote_path(current):
        has_backup = file_utils.exists(current)
        return _noted_beside(callback._training_metadata_path) if has_backup else None
    atomic.clean_leftovers(callback.backup_dir)
    problems = []
    for path, beside in (
        (current, callback._training_metadata_path),
        (previous, callback._prev_training_metadata_path),
    ):
        if not os.path.exists(path):
            continue
        try:
            progress = _noted_inside(path) or _noted_beside(beside)
        except OSError as error:
            problems.append(f"{path}: {str(error).splitlines()[0]}")
            continue
        if path == previous:
            _copy(previous, current)
            _write_text(callback._training_metadata_path, json.dumps(progress))
        return progress
    if problems:
        raise SaveError(
            explain(
                "No backup in the folder can be read",
                received="; ".join(problems),
                fix=f"Remove {callback.backup_dir} to begin anew",
            )
        )
    return None


def _noted_inside(path: str) -> dict[str, Any] | None:
    with h5py.File(path, "r") as file:
        text = file.attrs.get(_METADATA)
    return None if text is None else json.loads(text)


def _noted_beside(path: str) -> dict[str, Any]:
    """Reads the progress that a stock Keras wrote; empty when there is none."""
    if not file_utils.exists(path):
        return {}
    with file_utils.File(path, "r") as file:
        progress: dict[str, Any] = json.loads(file.read())
    return progress


def _check_visible(strategy: Any, path: str, expected: dict[str, Any]) -> None:
    """Raises on all workers unless each sees the backup that the chief resumes from."""
    if not agreement.is_shared(strategy):
        return
    problem = "" if strategy.tfdist.is_chief else _wait_for_backup(path, expected)
    problems = agreement.outcome(strategy, "a look at the backup", problem)
    if any(problems):
        blind = [f"worker {rank}: {text}" for rank, text in enumerate(problems) if text]
        raise SaveError(
            explain(
                "Not all workers see the backup that the chief resumes from: epoch "
                f"{expected.get('epoch', 0)}, step {expected.get('step', 0)}",
                received=f"{'; '.join(blind)}, at {path!r}",
                fix="Put backup_dir on a file system that all workers share",
            )
        )


def _wait_for_backup(path: str, expected: dict[str, Any]) -> str:
    """Returns "" when this worker sees the backup, or after a while what it sees instead."""
    until = time.monotonic() + _APPEAR
    while True:
        seen = "no file"
        if file_utils.exists(path):
            if file_utils.is_remote_path(path):
                return ""
            try:
                progress = _noted_inside(path)
            except OSError as error:
                seen = str(error).splitlines()[0]
            else:
                if progress is None or progress == expected:
                    return ""
                seen = f"a backup of epoch {progress['epoch']}, step {progress['step']}"
        if time.monotonic() > until:
            return seen
        time.sleep(0.2)


def _copy(source: str, target: str) -> None:
    """Copies a file, if it exists, whole or not at all."""
    if not file_utils.exists(source):
        return
    if file_utils.is_remote_path(target):
        file_utils.copy(source, target)
        return
    with atomic.replacing(target) as staged:
        shutil.copyfile(source, staged)


def _write_text(path: str, text: str) -> None:
    if file_utils.is_remote_path(path):
        with file_utils.File(path, "w") as file:
            file.write(text)
        return
    with atomic.replacing(path) as staged, open(staged, "w", encoding="utf-8") as file:
        file.write(text)


_BACKUP = "keras.src.callbacks.backup_and_restore:BackupAndRestore"

REPAIRS = (
    Repair(
        "keras.src.callbacks.model_checkpoint:ModelCheckpoint",
        "_save_model",
        "every worker decides and writes for itself (tensorflow issue 38635)",
        _save_checkpoint,
    ),
    Repair(
        _BACKUP,
        "_save_model",
        "every worker writes the one file in place, and its progress to a second file",
        _back_up,
    ),
    Repair(
        _BACKUP,
        "on_train_begin",
        "an epoch that was backed up in its middle begins anew; workers may resume from different "
        "backups",
        _restore,
    ),
    Repair(
        _BACKUP,
        "on_epoch_begin",
        "a backup in the middle of the first epoch after a resume notes epoch 0",
        _note_epoch,
    ),
    Repair(_BACKUP, "on_train_end", "every worker deletes the folder", _delete_backup),
)
