"""Every repair of the bridge is still needed: stock Keras is asked, in processes without tfdist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from keras_bridge.upstream_table import Check, load_checks
from support.server import CaseServer

CASES = "keras_bridge.upstream_table"
CHECKS = load_checks(
    "keras_bridge.upstream_callbacks",
    "keras_bridge.upstream_losses",
    "keras_bridge.upstream_optimizers",
    "keras_bridge.upstream_shards",
    "keras_bridge.upstream_trainer",
)


@pytest.fixture(scope="module")
def stock() -> Iterator[CaseServer]:
    with CaseServer(f"{CASES}:start") as server:
        yield server


@pytest.fixture(scope="module")
def stock_workers() -> Iterator[CaseServer]:
    with CaseServer(f"{CASES}:start_workers", n=2) as server:
        yield server


def still_there(check: Check, results: list[Any]) -> None:
    for rank, (fault, seen) in enumerate(results):
        assert fault, (
            f"upstream has fixed '{check.fault}': drop the repair {check.owner} {check.name}, "
            f"or what of it stands for this (rank {rank} saw: {seen})"
        )


@pytest.mark.parametrize(
    "check", [c for c in CHECKS if not c.workers], ids=lambda c: c.function.__name__
)
def test_upstream_still_needs_the_repair(stock: CaseServer, check: Check) -> None:
    still_there(check, stock.call(f"{CASES}:run", check=check.id))


@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c.workers], ids=lambda c: c.function.__name__
)
def test_upstream_still_needs_the_repair_on_workers(
    stock_workers: CaseServer, check: Check
) -> None:
    still_there(check, stock_workers.call(f"{CASES}:run", check=check.id))


@pytest.fixture(scope="module")
def repairs() -> dict[tuple[str, str], dict[str, list]]:
    """What the bridge replaces, by (owner, name): the parameters upstream and ours."""
    with CaseServer(f"{CASES}:start_bridge") as server:
        return server.call(f"{CASES}:signatures")[0]


# Repairs whose checks are in test_upstream_saving.py, which needs files that workers share.
_SAVING_LIB, _SAVING_API = "keras.src.saving.saving_lib", "keras.src.saving.saving_api"
_BACKUP = "keras.src.callbacks.backup_and_restore:BackupAndRestore"
_LOGGER = "keras.src.callbacks.csv_logger:CSVLogger"
SAVING = {
    (_SAVING_LIB, "save_model"): "test_every_worker_writes_the_file",
    (_SAVING_LIB, "save_weights_only"): "test_every_worker_writes_the_file",
    (_SAVING_LIB, "load_weights_only"): "test_an_unbuilt_optimizer_loses_its_state",
    (_SAVING_API, "save_model"): "test_every_worker_asks_at_the_terminal",
    (_SAVING_API, "save_weights"): "test_every_worker_asks_at_the_terminal",
    ("keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5"): (
        "test_every_worker_writes_the_file"
    ),
    ("keras.src.models.model:Model", "export"): "test_every_worker_writes_the_file",
    ("keras.src.export.saved_model_export_archive:SavedModelExportArchive", "write_out"): (
        "test_every_worker_writes_the_file"
    ),
    ("keras.src.callbacks.model_checkpoint:ModelCheckpoint", "_save_model"): (
        "test_every_worker_decides_what_is_best"
    ),
    (_BACKUP, "on_train_begin"): "test_a_backup_within_an_epoch_repeats_steps",
    (_BACKUP, "on_epoch_begin"): "test_a_backup_within_an_epoch_repeats_steps",
    ("keras.src.trainers.epoch_iterator:EpochIterator", "_enumerate_iterator"): (
        "test_a_backup_within_an_epoch_repeats_steps"
    ),
    (_LOGGER, "on_train_begin"): "test_every_worker_writes_the_logs",
    (_LOGGER, "on_epoch_end"): "test_every_worker_writes_the_logs",
    (_LOGGER, "on_train_end"): "test_every_worker_writes_the_logs",
    ("keras.src.callbacks.tensorboard:TensorBoard", "set_model"): (
        "test_every_worker_writes_the_logs"
    ),
}


def test_every_repair_has_an_upstream_check(repairs: dict[tuple[str, str], Any]) -> None:
    checks = {(check.owner, check.name) for check in CHECKS} | SAVING.keys()
    missing = repairs.keys() - checks
    assert not missing, f"no upstream check stands for {sorted(missing)}"
    dropped = checks - repairs.keys()
    assert not dropped, f"these repairs were dropped, their checks were not: {sorted(dropped)}"
    there = (Path(__file__).parent / "test_upstream_saving.py").read_text()
    gone = sorted({test for test in SAVING.values() if f"def {test}(" not in there})
    assert not gone, f"test_upstream_saving.py has no {gone}"


# What replacements that pass the arguments on read of them, by name.
_READ = {
    "fit": {"self", "callbacks", "verbose", "batch_size"},
    "evaluate": {"self", "verbose"},
    "predict": {"self", "verbose"},
}


def test_replaced_functions_have_the_signature_that_the_replacement_relies_on(
    repairs: dict[tuple[str, str], dict[str, list]],
) -> None:
    wrong = []
    for (owner, name), found in repairs.items():
        upstream, ours = found["upstream"], found["ours"]
        fixed = [part for part in ours if not part[1].startswith("VAR_")]
        passes_on = len(fixed) < len(ours)  # with *args or **kwargs
        same = upstream[: len(fixed)] == fixed if passes_on else upstream == ours
        if not same or not _READ.get(name, set()) <= {part[0] for part in upstream}:
            wrong.append(f"{owner} {name}: upstream {upstream}, ours {ours}")
    assert not wrong, "Keras changed what the bridge replaces:\n" + "\n".join(wrong)
