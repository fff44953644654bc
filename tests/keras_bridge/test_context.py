"""The convention of a step: the mean over the replicas of L_r is what one device computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_bridge import context as step_context
from tfdist.keras_bridge.context import BatchContext, CollectiveInJit, current, entered
from tfdist.keras_bridge.input import row_range

ROWS = np.random.default_rng(0).normal(size=(11, 3)).astype("float32")


def contexts(rows: int, replicas: int, dynamic: bool) -> list[BatchContext]:
    """The replicas' contexts of a global batch."""
    sizes = [b - a for a, b in (row_range(rows, i, replicas) for i in range(replicas))]
    wrap: Callable[[int], Any] = tf.constant if dynamic else int
    return [BatchContext(replicas, wrap(size), wrap(rows)) for size in sizes]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("rows", "replicas"), [(8, 2), (7, 2), (8, 3), (2, 4), (1, 2), (5, 1)])
def test_weighted_means_are_the_mean_of_all_rows(rows: int, replicas: int, dynamic: bool) -> None:
    parts = [ROWS[slice(*row_range(rows, i, replicas))] for i in range(replicas)]
    total = 0.0
    for context, part in zip(contexts(rows, replicas, dynamic), parts):
        total += float(context.times_weight(tf.reduce_mean(part))) / replicas
    assert total == pytest.approx(float(ROWS[:rows].mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("rows", "replicas", "weights"),
    [(7, 2, [8 / 7, 6 / 7]), (1, 2, [2.0, 0.0]), (4, 2, [1.0, 1.0])],
)
def test_weights(rows: int, replicas: int, weights: list[float]) -> None:
    for dynamic in (False, True):
        found = [float(context.weight()) for context in contexts(rows, replicas, dynamic)]
        assert found == pytest.approx(weights)


def test_static_even_shares_need_no_arithmetic() -> None:
    even, uneven, dynamic = (
        contexts(4, 2, False)[0],
        contexts(3, 2, False)[0],
        contexts(4, 2, True)[0],
    )
    assert [even.is_even, uneven.is_even, dynamic.is_even] == [True, False, False]
    value = tf.constant(3.0)
    assert even.times_weight(value) is value
    assert even.weight(tf.float16) == 1.0


def test_a_replica_without_rows_counts_nothing_even_when_it_has_nan() -> None:
    _, empty = contexts(1, 2, False)
    assert float(empty.times_weight(tf.constant(np.nan))) == 0.0
    for weighted in (False, True):
        empty.weighted = weighted
        assert float(empty.gradient_factor(tf.float32)) == 0.0


@pytest.mark.parametrize(
    ("weighted", "divided", "factors"),
    [
        (False, False, [4 / 7, 3 / 7]),  # the step's own loss: each mean counts by its rows
        (True, False, [1 / 2, 1 / 2]),  # a Keras loss carried w_r already
        (False, True, [8 / 7, 6 / 7]),  # and the loss scale has divided by N
        (True, True, [1.0, 1.0]),
    ],
)
def test_gradient_factors(weighted: bool, divided: bool, factors: list[float]) -> None:
    found = []
    for context in contexts(7, 2, True):
        context.weighted, context.divided = weighted, divided
        found.append(float(context.gradient_factor(tf.float32)))
    assert found == pytest.approx(factors)


def test_the_context_is_restored_also_after_an_error() -> None:
    outer, inner = contexts(4, 2, False)
    assert current() is None
    with entered(outer):
        with pytest.raises(ValueError, match="bug"), entered(inner):
            assert current() is inner
            raise ValueError("bug")
        assert current() is outer
    assert current() is None


def test_each_thread_has_a_context_of_its_own() -> None:
    """tf.distribute runs the replicas of a process in threads."""
    seen: list[Any] = []
    with entered(contexts(4, 2, False)[0]), step_context.local_updates():
        thread = threading.Thread(
            target=lambda: seen.extend([current(), step_context.local_updates_active()])
        )
        thread.start()
        thread.join(timeout=10)
        assert step_context.local_updates_active()
    assert seen == [None, False]
    assert not step_context.local_updates_active()


def test_no_collective_may_stand_in_a_compiled_step() -> None:
    value = tf.constant(2.0)
    with entered(BatchContext(2, 1, 2, jit=True)), pytest.raises(CollectiveInJit):
        step_context.replica_sum(value)
    with entered(BatchContext(1, 1, 1, jit=True)):
        assert step_context.replica_sum(value) is value
