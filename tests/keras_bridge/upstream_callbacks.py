"""What stock callbacks do on every worker; the others are in test_upstream_saving.py."""

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from keras_bridge.upstream_table import data, linear, stands_for
from parity.lazy import keras

_BACKUP = "keras.src.callbacks.backup_and_restore:BackupAndRestore"


def _second(strategy: Any) -> bool:
    return strategy.cluster_resolver.task_id == 1


@stands_for(
    "keras.src.callbacks.remote_monitor:RemoteMonitor",
    "on_epoch_end",
    "every worker sends the logs",
    workers=True,
)
def every_worker_sends(strategy: Any) -> tuple[bool, Any]:
    from keras.src.callbacks import remote_monitor

    callback = keras.callbacks.RemoteMonitor()
    with mock.patch.object(remote_monitor, "requests") as requests:
        callback.on_epoch_end(0, {"loss": 1.0})
    return requests.post.call_count == 1, (_second(strategy), requests.post.call_count)


@stands_for(
    "keras.src.callbacks.tensorboard:TensorBoard",
    "_log_embeddings",
    "every worker writes the embeddings",
    workers=True,
)
def every_worker_writes_embeddings(strategy: Any) -> tuple[bool, Any]:
    with tempfile.TemporaryDirectory() as folder:
        callback = keras.callbacks.TensorBoard(folder)
        callback.set_model(linear(strategy))
        os.makedirs(f"{folder}/train", exist_ok=True)
        callback._log_embeddings(0)
        written = [path.name for path in Path(folder).rglob("*.weights.h5")]
    return len(written) == 1, (_second(strategy), written)


def _backup(strategy: Any, folder: str) -> Any:
    callback = keras.callbacks.BackupAndRestore(f"{folder}/backup")
    model = linear(strategy)
    with strategy.scope():
        model._symbolic_build(data_batch=data())
    callback.set_model(model)
    callback._current_epoch = 1
    callback._save_model()
    return callback


@stands_for(_BACKUP, "_save_model", "every worker writes its backup in place", workers=True)
def every_worker_backs_up(strategy: Any) -> tuple[bool, Any]:
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.replace") as replace:
        _backup(strategy, folder)
        written = sorted(path.suffix for path in Path(folder).rglob("*.*"))
    return written == [".h5", ".json"] and not replace.called, (_second(strategy), written)


@stands_for(_BACKUP, "on_train_end", "every worker deletes the backups", workers=True)
def every_worker_deletes(strategy: Any) -> tuple[bool, Any]:
    with tempfile.TemporaryDirectory() as folder:
        callback = _backup(strategy, folder)
        before = os.listdir(folder)
        callback.on_train_end()
        after = os.listdir(folder)
    return bool(before) and not after, (_second(strategy), before, after)
