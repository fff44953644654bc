"""Steps: what a replica knows of its rows, and steps written for one device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_bridge import steps
from tfdist.keras_bridge.context import BatchContext
from tfdist.keras_bridge.input import DATA, ROWS

CASES = "keras_bridge.replica_cases"
TWO = SimpleNamespace(num_replicas_in_sync=2)
ONE = SimpleNamespace(num_replicas_in_sync=1)


def rows(strategy: Any, data: Any, **extra: Any) -> tuple[Any, Any]:
    return steps._rows(strategy, data, {DATA: data, **extra})


def test_even_static_shares_are_known_while_tracing() -> None:
    assert rows(TWO, (tf.ones((3, 2)), tf.ones((3,)))) == (3, 6)
    assert rows(ONE, tf.ones((3, 2))) == (3, 3)


@pytest.mark.parametrize(
    "data",
    [
        tf.ones((3, 2)),
        {"a": None, "b": tf.constant(["x", "y", "z"])},
        tf.ragged.constant([[1], [], [2]]),
        tf.sparse.from_dense([[1], [0], [2]]),
    ],
    ids=["dense", "dict", "ragged", "sparse"],
)
def test_other_shares_are_told_with_the_element(data: Any) -> None:
    own, total = rows(TWO, data, **{ROWS: tf.constant(5, tf.int64)})
    assert (int(own), int(total)) == (3, 5)
    assert own.dtype == total.dtype == tf.int32


def test_only_a_steps_own_float_scalars_are_weighted() -> None:
    model = SimpleNamespace(compiled=True, get_metrics_result=lambda: {"loss": None})
    context = BatchContext(2, 4, 7)
    outputs = {
        "loss": tf.constant(1.0),
        "own": tf.constant(1.0),
        "vector": tf.ones(2),
        "count": tf.constant(3),
        "text": "x",
    }
    found = steps.weighted_logs(model, outputs, context)
    assert float(found["own"]) == pytest.approx(8 / 7)
    for name in ("loss", "vector", "count", "text"):
        assert found[name] is outputs[name]
    context.weighted = True
    assert steps.weighted_logs(model, outputs, context) is outputs
    assert steps.weighted_logs(model, outputs, BatchContext(2, 4, 8)) is outputs


@pytest.fixture(scope="module")
def want() -> dict[str, Any]:
    """What one device computes in `own_step`, by hand: 11 rows in batches of 8 and 3."""
    from keras_bridge.bridge_cases import data

    x, y = data(11)
    weights, bias = np.ones((4, 1)), np.zeros(1)
    logs: dict[str, list[float]] = {"loss": [], "own": [], "count": [], "three": []}
    for _ in range(2):
        losses = []
        for first, last in ((0, 8), (8, 11)):
            error = x[first:last] @ weights + bias - y[first:last]
            losses.append(float((error**2).mean()))
            weights = weights - 0.1 * 2 * x[first:last].T @ error / (last - first)
            bias = bias - 0.1 * 2 * error.mean(0)
        logs["loss"].append(float(np.mean(losses)))
        logs["own"].append(losses[-1])
        logs["count"].append(11)
        logs["three"].append(3)
    return logs | {"weights": [*weights.ravel(), *bias]}


@pytest.mark.parametrize("eager", [False, True])
def test_a_step_written_for_one_device(mirrored: Any, want: Any, eager: bool) -> None:
    found = mirrored(f"{CASES}:own_step", rows=11, eager=eager)
    assert found.keys() == want.keys()
    for name, values in want.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_tuple_of_one_stays_a_tuple(mirrored: Any) -> None:
    assert mirrored(f"{CASES}:tuple_of_one") == [[1, 4, 4]] * 2


@pytest.mark.parametrize("batches", [5, 6])
def test_several_steps_per_execution_of_data_of_unknown_length(mirrored: Any, batches: int) -> None:
    found = mirrored(f"{CASES}:unknown_steps", batches=batches, per_execution=3)
    single = mirrored(f"{CASES}:unknown_steps", batches=batches, per_execution=1)
    assert found["steps"] == single["steps"] == 2 * batches
    assert found["rows"] == single["rows"] == 4 * batches - 1
    np.testing.assert_allclose(found["loss"], single["loss"], rtol=1e-5)
    assert found["evaluate"] == pytest.approx(single["evaluate"], rel=1e-5)
