"""Logs and outputs over all replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tfdist.errors import UnsupportedError
from tfdist.keras_bridge import metrics

CASES = "keras_bridge.replica_cases"


def test_parts_are_joined_along_their_rows() -> None:
    assert metrics.concat([tf.constant([1, 2]), tf.constant([3])]).numpy().tolist() == [1, 2, 3]
    assert metrics.concat([tf.zeros((0, 2)), tf.ones((1, 2))]).shape == (1, 2)
    assert metrics.concat([tf.constant(1), tf.constant(2)]).numpy().tolist() == [1, 2]
    ragged = metrics.concat([tf.ragged.constant([[1], []]), tf.ragged.constant([[2, 3]])])
    assert ragged.to_list() == [[1], [], [2, 3]]
    sparse = [tf.sparse.from_dense([[0, 1]]), tf.sparse.from_dense([[2, 0], [0, 0]])]
    assert tf.sparse.to_dense(metrics.concat(sparse)).numpy().tolist() == [[0, 1], [2, 0], [0, 0]]
    only = tf.constant([1])
    assert metrics.concat([only]) is only


class Place:
    """Stands for a strategy whose per-replica values are lists."""

    def __init__(self, workers: int = 1, replicas: int = 2) -> None:
        self.tfdist = SimpleNamespace(num_workers=workers)
        self.num_replicas_in_sync = replicas

    def experimental_local_results(self, value: Any) -> Any:
        return value.parts if isinstance(value, Parts) else (value,)

    def reduce(self, _: Any, value: Any, axis: Any) -> Any:
        assert axis is None
        return tf.add_n(value.parts) / len(value.parts)


class Parts:
    """A per-replica value."""

    def __init__(self, *parts: Any) -> None:
        self.parts = tuple(map(tf.constant, parts))


def test_outputs_of_one_process_are_joined() -> None:
    outputs = {"a": Parts([1, 2], [3]), "b": Parts([[1.0]], [[2.0]])}
    joined = metrics.concatenated(Place(), outputs)
    assert joined["a"].numpy().tolist() == [1, 2, 3]
    assert joined["b"].numpy().tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    "value",
    [tf.ragged.constant([[1], []]), tf.sparse.from_dense([[0, 1]])],
    ids=["ragged", "sparse"],
)
def test_what_workers_can_not_gather_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"Sparse and ragged.*dense tensors"):
        metrics.concatenated(Place(workers=2), value)


def test_own_values_are_averaged_and_others_are_the_first_replicas() -> None:
    assert float(metrics._mean(Place(), Parts(1.0, 3.0))) == 2.0
    assert int(metrics._mean(Place(), Parts(1, 3))) == 1
    assert metrics._mean(Place(), "text") == "text"


def test_metrics_of_several_shapes_are_read_at_once(mirrored: Any) -> None:
    found = mirrored(f"{CASES}:packed_metrics")
    assert found["got"] == pytest.approx(found["want"], rel=1e-5)
