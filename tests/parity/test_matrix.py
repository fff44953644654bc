"""The matrix can fail, and forgets nothing: tests of its comparison, its rows, and its table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from parity import compare
from parity.columns import COLUMNS
from parity.registry import load_rows
from parity.rows import callbacks, losses, metrics, optimizers
from parity.runner import Matrix, cells, check
from parity.table import GREEN, REFUSED, markdown, notes, symbol
from support.server import CaseServer

_NOT_ROWS = {
    "optimizers": {"Optimizer", "OptimizerMap"},  # the base class, and MultiOptimizer's argument
    "callbacks": {
        "Callback",
        "CallbackList",
        "OrbaxCheckpoint",  # needs a package that is not a dependency
    },
    "losses": {"Loss"},
    "metrics": {"Metric", "Mean", "Sum", "MeanMetricWrapper"},
}


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    with Matrix() as running:
        yield running


@pytest.mark.parametrize(
    "row",
    [
        "clipnorm",
        "global_clipnorm",
        "uneven last batch",
        "loss function, batch mean",
        "train_on_batch, test_on_batch, predict_on_batch",
    ],
)
def test_what_stock_mirrored_gets_silently_wrong_is_red(matrix: Matrix, row: str) -> None:
    """When one of these turns green, TensorFlow or Keras was repaired."""
    with pytest.raises(AssertionError, match="not equal to one device"):
        check(matrix.rows[row], matrix.cell(row, "stock_mirrored"))


@pytest.mark.parametrize(
    "row",
    [
        "gradient accumulation",
        "EMA with ema_overwrite_frequency",
        "steps_per_execution, dividing the batches",
        "jit_compile=True",
        "first batch that does not divide by the replicas",
        "string inputs",
        "class_weight, with a DistributedDataset",
    ],
)
def test_what_stock_mirrored_can_not_do_is_red(matrix: Matrix, row: str) -> None:
    with pytest.raises(AssertionError, match="failed on rank 0"):
        check(matrix.rows[row], matrix.cell(row, "stock_mirrored"))


@pytest.mark.parametrize(
    "row",
    ["numpy", "learning-rate schedule ExponentialDecay", "BatchNormalization(synchronized=True)"],
)
def test_what_stock_mirrored_gets_right_is_green(matrix: Matrix, row: str) -> None:
    check(matrix.rows[row], matrix.cell(row, "stock_mirrored"))


def _cell(reference: dict, *results: dict, **more: object) -> compare.Cell:
    return compare.Cell("mirrored", reference, results, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("want", "got", "message"),
    [
        ({"history": {"loss": [1.0]}}, {"history": {"loss": [1.001]}}, "loss"),
        ({"history": {"loss": [1.0]}}, {"history": {"loss": [1.0, 1.0]}}, "1 entries, got 2"),
        ({"history": {"loss": [1.0]}}, {"history": {}}, "missing"),
        ({"history": {}}, {"history": {"loss": [1.0]}}, "unexpected"),
        ({"w": np.zeros(2)}, {"w": np.zeros(3)}, "shape"),
        ({"w": np.zeros(2)}, {"w": np.array([0.0, np.nan])}, "nan"),
        ({"steps": 3}, {"steps": 4}, "steps"),
        ({"stopped": True}, {"stopped": False}, "stopped"),
        ({"stopped": True}, {"stopped": 1}, "stopped"),
        ({"words": ["a"]}, {"words": ["b"]}, "words"),
    ],
)
def test_a_difference_is_found(want: dict, got: dict, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        compare.assert_equal(_cell(want, got))
    with pytest.raises(AssertionError, match="rank 1"):
        compare.assert_equal(_cell(want, want, got))
    compare.assert_equal(_cell(want, want, want))


def test_tolerances_and_ranks() -> None:
    want, near = {"w": np.array([100.0, 0.0])}, {"w": np.array([100.009, 0.00001])}
    compare.assert_equal(_cell(want, near))
    with pytest.raises(AssertionError):
        compare.assert_equal(_cell(want, near, rtol=1e-5, atol=1e-6))
    chief_only = {"chief_file": 1, "own_time": 2}
    compare.assert_equal(_cell(chief_only, {"chief_file": 1, "own_time": 3}, {"chief_file": None}))
    with pytest.raises(AssertionError, match="chief_file"):
        compare.assert_equal(_cell(chief_only, {"chief_file": 2}))


def test_files_are_compared() -> None:
    with pytest.raises(AssertionError, match="files"):
        compare.assert_equal(_cell({}, {}, files=("a", "a.tmp"), reference_files=("a",)))


def test_promises_can_be_broken() -> None:
    nan, finite = {"weights": {"w": np.array([np.nan])}}, {"weights": {"w": np.array([1.0])}}
    with pytest.raises(AssertionError):
        compare.assert_finite(_cell({}, nan))
    with pytest.raises(AssertionError, match="ranks differ"):
        compare.assert_ranks_agree(_cell({}, finite, {"weights": {"w": np.array([2.0])}}))
    compare.assert_finite(_cell({}, finite))
    compare.assert_ranks_agree(_cell({}, finite, finite))


@pytest.fixture(scope="module")
def public_classes() -> dict[str, set[str]]:
    """The classes that the installed Keras exports, by module."""
    with CaseServer("parity.columns:start_reference") as server:
        return server.call("parity.columns:public_classes")[0]


def test_no_built_in_class_is_forgotten(public_classes: dict[str, set[str]]) -> None:
    covered = {
        "optimizers": {*optimizers.OPTIMIZERS, "MultiOptimizer"},
        "callbacks": set(callbacks.COVERED),
        "losses": set(losses.COVERED),
        "metrics": set(metrics.COVERED),
    }
    for module, names in public_classes.items():
        forgotten = names - covered[module] - _NOT_ROWS[module]
        assert not forgotten, f"keras.{module}: no row trains with {sorted(forgotten)}"


def test_the_table_has_every_cell() -> None:
    rows, text = load_rows(), markdown()
    assert len({name.lower() for name in rows}) == len(rows)
    lines = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    assert set(rows) <= set(lines)
    refused = [(r, c) for r, c in cells() if rows[r].refused and c in rows[r].refused.columns]
    assert text.count(f"{REFUSED} [") == len(refused)
    assert text.count(GREEN) == len(cells()) - len(refused)
    for note in notes(rows):
        assert note in text


def test_the_table_shows_what_failed() -> None:
    (row, column), *_ = cells()
    text = markdown(frozenset({(row, column)}))
    assert text.count("✗") == 1
    rows = load_rows()
    assert symbol(rows[row], column, notes(rows), failed=True) == "✗"
    assert symbol(rows["shuffle=True"], "mirrored_3", notes(rows)) == ""


def test_hidden_columns_are_not_in_the_table() -> None:
    assert {column for _, column in cells()} == {n for n, c in COLUMNS.items() if c.shown}
