"""Saving from several workers: one file, written by the chief, whole or not at all.

    every worker        model.save(path)
                          |  arrive: who saves what, where          a deadline; SaveError if alone
                          |  average the replicas' statistics       a collective
    chief               write beside `path`, flush, rename
    every worker          |  outcome: "" or the chief's error       SaveError on all
                          v  the file is there

Every distinct path is written once, by the first worker that named it, so the recipe in which the
others save to a path of their own works too.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import h5py
import tensorflow as tf
from keras.src.utils import file_utils

from tfdist.errors import SaveError, explain
from tfdist.keras_bridge import agreement, atomic, coordinator, failures
from tfdist.keras_bridge.marks import is_tfdist, strategy_of
from tfdist.keras_bridge.patching import Repair, apply_repairs
from tfdist.keras_bridge.replica_state import readable_by_one, sync_batch_statistics

__all__ = ["REPAIRS", "coordinated_save", "install", "sync_batch_statistics"]

logger = logging.getLogger(__name__)

_APPEAR = 10.0  # seconds in which a network file system shows a new file to other hosts
_unshared: set[str] = set()  # folders in which this worker does not see the chief's files
_PER_VARIABLE = 2048  # bytes that HDF5 spends on a variable's name and place
_saving: list[str] = []  # the save that this process is in: an export writes through another


def install() -> None:
    """Installs the repairs of this module."""
    apply_repairs(REPAIRS)


def coordinated_save(
    model: Any,
    path: Any,
    what: str,
    write: Callable[[Any], None],
    *,
    finish: Callable[[str], None] | None = None,
) -> None:
    """Writes a model's file once for all workers; every worker must call it.

    Args:
        model: a model built under a tfdist strategy.
        path: where to write; a remote path is written in place by one worker.
        what: the call, such as "model.save", for error messages.
        write: writes to the path that it is given.
        finish: called with the path that was written, before the file takes its place.

    Raises:
        SaveError: if a worker doesn't make the call in time, or the writing fails (with several
            workers; with one, the writing's own error passes through).
        ClusterError: if another worker fails meanwhile.
    """
    strategy = strategy_of(model)
    coordinator.settle(model)
    path = _absolute(path)
    shared = agreement.is_shared(strategy)
    writes = True
    if strategy is not None and shared:
        arrivals = agreement.arrive(strategy, what, {"what": what, "path": path})
        _check_same_call(arrivals)
        paths = [arrival["path"] for arrival in arrivals]
        writes = paths.index(path) == strategy.tfdist.rank
    sync_batch_statistics(model)
    with readable_by_one(model):
        size = _size(model)
        problem = _write(path, write, finish, size, reports=shared) if writes else None
    if shared:
        _agree_on_outcome(strategy, path, writes, problem)


def _write(
    path: str,
    write: Callable[[Any], None],
    finish: Callable[[str], None] | None,
    size: int,
    reports: bool,
) -> BaseException | None:
    """Writes the file; returns the error instead of raising it where others wait for it."""
    _saving.append(path)
    try:
        remote = file_utils.is_remote_path(path)
        with contextlib.nullcontext(path) if remote else atomic.replacing(path, size) as staged:
            write(staged)
            if finish is not None:
                finish(staged)
    except BaseException as error:
        if not reports:
            raise
        return error
    finally:
        _saving.pop()
    return None


def _size(model: Any) -> int:
    """Returns about how many bytes a model and its optimizer take in a file."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *getattr(optimizer, "variables", ())]
    return sum(
        math.prod(v.shape) * tf.as_dtype(v.dtype).size + _PER_VARIABLE
        for v in variables
        if None not in v.shape
    )


def _agree_on_outcome(
    strategy: Any, path: str, writes: bool, problem: BaseException | None
) -> None:
    summary = "" if problem is None else failures.summary(problem)
    problems = agreement.outcome(strategy, "saved", summary)
    if problem is not None and not isinstance(problem, Exception):
        raise problem  # such as Ctrl-C: the others have been told
    for rank, text in enumerate(problems):
        if text:
            raise SaveError(
                explain(
                    f"Worker {rank} could not write the file",
                    received=f"{text}; path {path!r}",
                    fix="Free the disk, correct the path or its permissions, and save again; "
                    "an earlier version of the file is untouched",
                )
            ) from problem
    if not writes:
        _wait_until_visible(path)


def _check_same_call(arrivals: list[dict[str, Any]]) -> None:
    calls = [arrival["what"] for arrival in arrivals]
    if len(set(calls)) > 1:
        raise SaveError(
            explain(
                "The workers are in different calls that write a file",
                received=", ".join(f"worker {rank}: `{call}`" for rank, call in enumerate(calls)),
                fix="Make the same calls in the same order on every worker",
            )
        )


def _wait_until_visible(path: str) -> None:
    """Warns, once for a folder, when what another worker wrote can't be seen here."""
    folder = os.path.dirname(path)
    if folder in _unshared:
        return
    until = time.monotonic() + _APPEAR
    while not file_utils.exists(path):
        if time.monotonic() > until:
            _unshared.add(folder)
            logger.warning(
                "The chief has written %s, but this worker can't see it: it is not on a file "
                "system that the workers share.",
                path,
            )
            return
        time.sleep(0.1)


def _absolute(path: Any) -> str:
    path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return path if file_utils.is_remote_path(path) else os.path.abspath(path)


def _acts(model: Any, path: Any) -> bool:
    """Whether a save is tfdist's: not of a nested writer, nor to an open file."""
    return strategy_of(model) is not None and isinstance(path, (str, os.PathLike)) and not _saving


def _save_model(
    original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> None:
    if not _acts(model, filepath) or str(filepath).startswith("hf://"):
        original(model, filepath, *args, **kwargs)
        return
    coordinated_save(
        model, filepath, "model.save", lambda path: original(model, path, *args, **kwargs)
    )


def _save_weights(
    original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> None:
    if not _acts(model, filepath):
        original(model, filepath, *args, **kwargs)
        return
    coordinated_save(
        model, filepath, "model.save_weights", lambda path: original(model, path, *args, **kwargs)
    )


def _save_legacy(
    original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> None:
    if not _acts(model, filepath):
        original(model, filepath, *args, **kwargs)
        return
    os.makedirs(os.path.dirname(_absolute(filepath)), exist_ok=True)
    coordinated_save(
        model, filepath, "model.save", lambda path: original(model, path, *args, **kwargs)
    )


def _export(
    original: Callable[..., Any], self: Any, filepath: Any, *args: Any, **kwargs: Any
) -> None:
    if not _acts(self, filepath):
        original(self, filepath, *args, **kwargs)
        return
    coordinated_save(
        self, filepath, "model.export", lambda path: original(self, path, *args, **kwargs)
    )


def _ask_first(
    original: Callable[..., Any], model: Any, filepath: Any, overwrite: bool = True, **kwargs: Any
) -> None:
    """Answers `overwrite=False` alike on all workers, none of which has a terminal to ask at."""
    strategy = strategy_of(model)
    if agreement.is_shared(strategy) and not overwrite:
        facts = {"path": str(filepath), "exists": file_utils.exists(str(filepath))}
        if agreement.arrive(strategy, "model.save(overwrite=False)", facts)[0]["exists"]:
            raise SaveError(
                explain(
                    "The file exists and overwrite=False: Keras would ask at the terminal, which "
                    "several workers can't",
                    received=f"path {str(filepath)!r}",
                    fix="Save to another path, or pass overwrite=True",
                )
            )
        overwrite = True
    original(model, filepath, overwrite=overwrite, **kwargs)


def _load_weights(
    original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any
) -> None:
    """Builds the optimizer before its state is loaded."""
    strategy = strategy_of(model)
    if strategy is not None and isinstance(filepath, (str, os.PathLike)):
        path = _absolute(filepath)
        if not file_utils.is_remote_path(path):
            atomic.clean_leftovers(os.path.dirname(path))
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not optimizer.built and model.built and _has_optimizer(path):
            with strategy.scope():
                optimizer.build(model.trainable_variables)
    original(model, filepath, *args, **kwargs)


def _has_optimizer(path: str) -> bool:
    """Whether a weights file holds an optimizer's state; only `.weights.h5` is looked into."""
    if not path.endswith(".weights.h5") or file_utils.is_remote_path(path):
        return True
    try:
        with h5py.File(path, "r") as file:
            return "optimizer" in file
    except OSError:
        return False  # loading it will say what is wrong


def _write_out(
    original: Callable[..., Any], self: Any, filepath: Any, *args: Any, **kwargs: Any
) -> None:
    """Lets the chief alone write an `ExportArchive` that was put together by hand."""
    models = [m for m in getattr(self, "_tracked", ()) if strategy_of(m) is not None]
    if not models or not _acts(models[0], filepath):
        original(self, filepath, *args, **kwargs)
        return
    for model in models[1:]:
        if is_tfdist(strategy_of(model)):
            sync_batch_statistics(model)
    coordinated_save(
        models[0],
        filepath,
        "ExportArchive.write_out",
        lambda path: original(self, path, *args, **kwargs),
    )


_SAVING_LIB = "keras.src.saving.saving_lib"
_SAVING_API = "keras.src.saving.saving_api"
# Keras 3.12, the last for Python 3.10, has one class where later versions have one for each format.
_ARCHIVE = (
    "keras.src.export.saved_model_export_archive:SavedModelExportArchive"
    if find_spec("keras.src.export.saved_model_export_archive")
    else "keras.src.export.saved_model:ExportArchive"
)
_ONE_FILE = (
    "every worker writes the same file, in place (tensorflow issue 38635), with its own "
    "BatchNormalization statistics (tensorflow issue 18222)"
)

REPAIRS = (
    Repair(_SAVING_LIB, "save_model", _ONE_FILE, _save_model),
    Repair(_SAVING_LIB, "save_weights_only", _ONE_FILE, _save_weights),
    Repair(
        "keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5", _ONE_FILE, _save_legacy
    ),
    Repair("keras.src.models.model:Model", "export", _ONE_FILE, _export),
    Repair(
        _ARCHIVE,
        "write_out",
        _ONE_FILE,
        _write_out,
    ),
    Repair(_SAVING_API, "save_model", "asks at the terminal on every worker", _ask_first),
    Repair(_SAVING_API, "save_weights", "asks at the terminal on every worker", _ask_first),
    Repair(
        _SAVING_LIB,
        "load_weights_only",
        "loses the optimizer's state when the optimizer is not built (tensorflow issue 30850)",
        _load_weights,
    ),
)
