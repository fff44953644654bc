"""What users of tf.distribute and Keras ran into, with the right outcome.

The numbers name reports (P01, P02, ...). Those that are nothing but one feature of `fit` are rows of
the parity matrix; the table below says which.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.compare import differences
from parity.registry import load_rows
from support.server import CaseServer

CASES = "cases.fit_cases"
BOTH = pytest.mark.parametrize("column", ["mirrored", "multi_worker"])

ROWS = {
    "P01": ["Dataset", "steps_per_epoch on an infinite dataset"],
    "P02": ["numpy", "train_on_batch, test_on_batch, predict_on_batch", "evaluate", "predict"],
    "P04": ["jit_compile=True"],
    "P06": ["Dropout"],
    "P07": [
        "first batch that does not divide by the replicas",
        "steps_per_execution, not dividing the batches",
    ],
    "P08": ["steps_per_execution, dividing the batches"],
    "P09": ["Embedding, sparse gradients", "Embedding, sparse gradients, clipped and accumulated"],
    "P10": ["jit_compile=True", "jit_compile=True, uneven last batch"],
    "P11": ["gradient accumulation", "gradient accumulation, not dividing the steps"],
    "P12": ["EMA with ema_overwrite_frequency", "SwapEMAWeights"],
    "P13": ["train_on_batch, test_on_batch, predict_on_batch"],
    "P14": ["DistributedDataset", "a callback that reads weights and learning rate"],
    "P24": ["class_weight", "class_weight, with a DistributedDataset"],
    "P25": [
        "BatchNormalization, not synchronized, a replica without rows",
        "loss function, batch mean, uneven last batch",
        "last batch smaller than the number of replicas",
    ],
    "P31": ["ModelCheckpoint, weights of every epoch", "ModelCheckpoint, best whole model only"],
    "P34": ["BackupAndRestore"],
    "P35": ["CSVLogger", "TensorBoard"],
    "P37": ["mixed_float16", "mixed_float16, a step skipped for overflow"],
    "P39": ["kernel, bias and activity regularizers"],
    "P40": ["Loss class that divides by the global batch itself"],
    "P41": ["loss function, batch mean", "loss function, batch sum"],
    "P43": ["custom train_step and test_step", "custom train_step with tf.nn.compute_average_loss"],
    "P44": ["clipnorm", "global_clipnorm", "clipvalue"],
    "P45": ["BatchNormalization(synchronized=True)", "BatchNormalization under sync_batch_norm"],
    "P46": ["BatchNormalization(synchronized=True), a replica without rows"],
    "P48": ["sparse top-k, MeanIoU and IoU", "metrics given by name: accuracy"],
    "P49": ["evaluate", "regression metrics"],
    "P50": ["predict, in input order", "predict, several inputs and dict outputs", "predict"],
    "P69": ["Sequential model, not built, fitted outside the scope", "fit inside the scope"],
    "P83": ["save and load .keras, training goes on", "save and load .weights.h5 with the optimizer's state"],
}  # fmt: skip


@pytest.fixture(scope="module")
def reference() -> Iterator[CaseServer]:
    with CaseServer("parity.columns:start_reference") as server:
        yield server


@pytest.fixture(scope="module")
def local() -> Iterator[CaseServer]:
    with CaseServer("parity.columns:start_local") as server:
        yield server


@pytest.fixture(scope="module")
def group() -> Iterator[CaseServer]:
    with CaseServer("parity.columns:start_group", n=2) as server:
        yield server


@pytest.fixture
def run(local: CaseServer, group: CaseServer) -> Any:
    """Runs a case on every process of a column."""

    def on(case: str, column: str, timeout: float = 60.0, **arguments: Any) -> list[Any]:
        server = group if column == "multi_worker" else local
        return server.call(f"{CASES}:{case}", timeout, column=column, **arguments)

    return on


@pytest.fixture
def one_device(reference: CaseServer) -> Any:
    """Runs a case with stock Keras on one device."""

    def on(case: str, **arguments: Any) -> Any:
        return reference.call(f"{CASES}:{case}", column="reference", **arguments)[0]

    return on


def same(want: Any, results: list[Any]) -> None:
    """Fails when a rank's result is not one device's."""
    for rank, got in enumerate(results):
        got, kept = ({k: v for k, v in d.items() if not k.startswith("own_")} for d in (got, want))
        found = differences(kept, got, 1e-4, 1e-5, f"rank {rank}")
        assert not found, "\n".join(found)


def refused(result: dict[str, str], kind: str, *parts: str) -> None:
    """Fails when an error is not ours, not of this kind, or does not say this."""
    assert result["kind"] == kind, result
    assert result["ours"] == "True"
    for part in parts:
        assert part in result["text"], result["text"]


def test_every_other_case_is_a_row_of_the_matrix() -> None:
    rows = load_rows()
    missing = [(case, name) for case, names in ROWS.items() for name in names if name not in rows]
    assert not missing


@BOTH
def test_p05_a_dataset_batched_twice_is_an_error_at_once(run: Any, column: str) -> None:
    for result in run("double_batch", column):
        assert result["kind"] in ("ValueError", "DataError")
        assert "(None, None, 4)" in result["text"], "names the shape"
        assert np.isfinite(result["afterwards"]).all(), "the workers must be fit for another try"


@BOTH
def test_p08_steps_per_execution_above_32(run: Any, one_device: Any, column: str) -> None:
    results = run("many_steps_per_execution", column)
    # Stock Keras refuses 40 get_next calls in one function, so the reference takes single steps.
    same(one_device("single_steps"), results)


@BOTH
def test_p09_p65_sparse_gradients_of_unequal_lengths(
    run: Any, one_device: Any, column: str
) -> None:
    results = run("embedding_lengths", column)
    same(one_device("embedding_lengths"), results)
    assert all(result["own_floods"] <= 1 for result in results)


@BOTH
def test_p13_on_batch_methods_with_batch_normalisation(run: Any, column: str) -> None:
    for result in run("batch_norm_on_batch", column):
        assert result == {"finite": True, "weights": True, "rows": [16, 7, 1]}


@BOTH
def test_p14_float_of_the_learning_rate(run: Any, one_device: Any, column: str) -> None:
    same(one_device("distributed_and_scheduled"), run("distributed_and_scheduled", column))


def test_p15_keras_distribution_is_refused(local: CaseServer) -> None:
    (result,) = local.call(f"{CASES}:keras_distribution")
    refused(result, "ConfigError", "keras.distribution has no effect", "DataParallel")


def test_p26_unequal_numbers_of_local_batches(run: Any, one_device: Any) -> None:
    results = run("unequal_local", "multi_worker")
    same(one_device("unequal_local"), results)
    for result in results:
        assert any("8, 6 batches" in message for message in result["own_told"])


def test_p28_file_sharding_of_tensors_is_one_line(run: Any) -> None:
    for result in run("file_policy_on_tensors", "multi_worker"):
        refused(result, "DataError", "can't be sharded by files", "AutoShardPolicy.DATA")
        assert "\n" not in result["text"].split("Received")[0].strip()
        assert len(result["text"]) < 800
        assert result["steps"] == "0"


def write_records(path: Path, rows: np.ndarray) -> None:
    """Writes rows as a TFRecord file, without TensorFlow."""
    with open(path, "wb") as file:
        for row in rows.astype("float32"):
            data = row.tobytes()
            length = struct.pack("<Q", len(data))
            file.write(length + _masked_crc(length) + data + _masked_crc(data))


@pytest.fixture
def one_file(tmp_path: Path) -> Path:
    """A folder with one TFRecord file of 32 rows of five floats."""
    write_records(tmp_path / "one.tfrecord", np.random.default_rng(0).normal(size=(32, 5)))
    return tmp_path


def _masked_crc(data: bytes) -> bytes:
    """The checksum of the TFRecord format: CRC-32C, rotated, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def test_p29_fewer_files_than_workers(run: Any, one_file: Path) -> None:
    results = run("from_files", "multi_worker", folder=str(one_file), policy="FILE")
    for result in results:
        refused(result["refused"], "DataError", "file")
    assert results[0]["refused"] == results[1]["refused"], "every worker says the same"


@pytest.mark.parametrize("policy", ["AUTO", "DATA"])
def test_p29_fewer_files_than_workers_without_the_policy(
    run: Any, one_device: Any, one_file: Path, policy: str
) -> None:
    results = run("from_files", "multi_worker", folder=str(one_file), policy=policy)
    want = one_device("from_files", folder=str(one_file), policy=policy)
    same(want, results)


def test_p29_a_file_for_each_worker(run: Any, one_device: Any, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(32, 5))
    write_records(tmp_path / "a.tfrecord", rows[:16])
    write_records(tmp_path / "b.tfrecord", rows[16:])
    results = run("from_files", "multi_worker", folder=str(tmp_path), policy="FILE")
    same(one_device("from_files", folder=str(tmp_path), policy="FILE"), results)


def test_p30_workers_train_on_their_own_rows_and_print_the_global_loss(
    run: Any, one_device: Any
) -> None:
    results = run("rows_seen", "multi_worker")
    same(one_device("rows_seen"), results)
    steps = list(zip(*[result["own_rows"] for result in results], strict=True))
    assert [sorted(row for part in parts for row in part) for parts in steps] == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 22)),
    ]


@BOTH
@pytest.mark.parametrize("recipe", ["loss object", "average", "scaled"])
def test_p43_p38_a_hand_written_loop_takes_one_true_step(
    run: Any, column: str, recipe: str
) -> None:
    for size in run("hand_written_step", column, recipe=recipe):
        assert size == pytest.approx(1.0, rel=1e-4)


@BOTH
@pytest.mark.parametrize(
    ("made", "part"),
    [
        ("plain", "BatchNormalization takes its statistics over each replica's own rows (about 4"),
        ("synchronized", ""),
        ("float16 softmax", "output is float16"),
    ],
)
def test_p45_p86_what_may_surprise_is_said_once(
    run: Any, column: str, made: str, part: str
) -> None:
    for messages in run("advice", column, made=made):
        ours = [m for m in messages if "BatchNormalization" in m or "float16" in m]
        assert len(ours) == (1 if part else 0), messages
        assert part in "".join(ours)


def test_p51_stopping_is_agreed(run: Any) -> None:
    results = run("stop_votes", "multi_worker")
    assert len({result["epochs"] for result in results}) == 1
    assert results[0]["epochs"] < 6
    assert any("stop" in text.lower() for result in results for text in result["told"]), results


@BOTH
def test_p66_masks_differ_between_replicas_and_repeat_with_the_seed(run: Any, column: str) -> None:
    first, again = (run("dropout_masks", column) for _ in range(2))
    masks = [mask for rank in first for mask in rank]
    assert len({mask.tobytes() for mask in masks}) == len(masks) == 4
    for one, two in zip(masks, [mask for rank in again for mask in rank], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("optimizer", "my_adam"),
        ("compile", "my_adam"),
        ("model", "'net'"),
        ("layer", "readout/kernel"),
        ("other strategy", "'net'"),
    ],
)
def test_p68_objects_of_another_scope_are_named(local: CaseServer, made: str, named: str) -> None:
    (result,) = local.call(f"{CASES}:outside_scope", column="mirrored", made=made)
    refused(result, "ScopeError", named, "scope")
    assert result["steps"] == "0"


@pytest.mark.parametrize("made", ["optimizer", "compile", "model", "layer"])
def test_p68_objects_of_another_scope_on_workers(group: CaseServer, made: str) -> None:
    for result in group.call(f"{CASES}:outside_scope", column="multi_worker", made=made):
        refused(result, "ScopeError", "scope")
        assert result["steps"] == "0"


def test_p77_local_data_that_is_declared_is_used_whole(run: Any, one_device: Any) -> None:
    results = run("own_halves", "multi_worker", declared=True)
    same(one_device("own_halves", declared=True), results)


def test_p77_local_data_that_is_not_declared_is_refused(run: Any) -> None:
    for result in run("own_halves", "multi_worker", declared=False):
        refused(result, "DataError", "different global batches", "auto_shard_policy")


@BOTH
def test_p78_steps_that_do_not_fit_the_data(run: Any, column: str) -> None:
    for result in run("steps_and_data", column):
        refused(result["too many"], "DataError", "4 batches, 6 steps", "repeat")
        refused(result["endless"], "DataError", "steps_per_epoch")
        refused(result["endless validation"], "DataError", "validation_steps")
        refused(result["endless evaluate"], "DataError", "steps")
        assert result["steps"] == 0, "refused before training"


@pytest.mark.parametrize(
    ("column", "rows", "shares"),
    [
        ("mirrored", 8, [[4, 4]]),
        ("mirrored", 7, [[3, 4]]),
        ("mirrored_3", 8, [[2, 3, 3]]),
        ("multi_worker", 8, [[4], [4]]),
        ("multi_worker", 7, [[4], [3]]),
    ],
)
def test_p80_batch_size_is_global(run: Any, column: str, rows: int, shares: list) -> None:
    assert run("rows_per_replica", column, rows=rows) == shares


def test_p89_runs_repeat_to_the_last_bit(run: Any) -> None:
    prints = run("fingerprint", "multi_worker") + run("fingerprint", "multi_worker")
    assert len(set(prints)) == 1


@BOTH
def test_p93_a_hand_written_loop_whose_optimizer_is_not_built(run: Any, column: str) -> None:
    for size in run("hand_written_step", column, recipe="optimizer not built"):
        assert size == pytest.approx(1.0, rel=1e-4)


def test_p82_a_failure_on_one_worker_is_told_on_the_others(group: CaseServer) -> None:
    try:
        results = group.call(f"{CASES}:failing_callback", column="multi_worker")
    finally:
        group.close()  # the workers' collectives are broken
    assert results[1]["kind"] == "ValueError"
    assert results[1]["text"] == "user bug on worker 1"
    refused(results[0], "ClusterError", "worker 1", "user bug on worker 1")
