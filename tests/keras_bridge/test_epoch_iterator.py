"""Steps of an epoch: how many there are, how many an execution may take, and what is refused."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.errors import DataError
from tfdist.keras_bridge.epochs import BridgedEpochIterator, check_steps
from tfdist.keras_bridge.input import DATA
from tfdist.keras_bridge.steps import StepIterator
from tfdist.strategies import SingleDeviceStrategy


@pytest.fixture(scope="module")
def single() -> SingleDeviceStrategy:
    return SingleDeviceStrategy()


def batches(n: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(n).batch(1)


def endless(_: int) -> tf.data.Dataset:
    return batches(2).repeat()


def unknown(n: int) -> tf.data.Dataset:
    return batches(n).filter(lambda _: True)


def executions(iterator: Any) -> list[tuple[int, int | None]]:
    """One epoch as Keras' loop runs it: (first step, steps that the execution may take)."""
    found = []
    for begin, _, source in iterator:
        assert isinstance(source, StepIterator)
        found.append((begin, source.steps))
        for _ in range(source.steps or 1):
            next(source)
    return found


@pytest.mark.parametrize(
    ("make", "n", "steps", "per_execution", "want"),
    [
        (batches, 3, None, 1, [(0, 1), (1, 1), (2, 1)]),
        (batches, 5, None, 2, [(0, 2), (2, 2), (4, 1)]),
        (batches, 4, None, 8, [(0, 4)]),
        (batches, 6, 5, 3, [(0, 3), (3, 2)]),
        (endless, 0, 5, 4, [(0, 4), (4, 1)]),
        (unknown, 5, 4, 1, [(0, 1), (1, 1), (2, 1), (3, 1)]),
    ],
)
def test_executions_of_an_epoch(
    single: Any, make: Any, n: int, steps: int | None, per_execution: int, want: list
) -> None:
    iterator = BridgedEpochIterator(
        single, make(n), steps_per_epoch=steps, steps_per_execution=per_execution
    )
    assert executions(iterator) == want


def test_an_unknown_number_of_batches_leaves_an_executions_steps_open(single: Any) -> None:
    iterator = BridgedEpochIterator(single, unknown(5), steps_per_execution=3)
    _, _, source = next(iter(iterator))
    assert source.steps is None


def test_each_pass_begins_at_the_first_element(single: Any) -> None:
    iterator = BridgedEpochIterator(single, batches(3))
    for _ in range(2):
        seen = [int(next(source)[DATA][0]) for _, _, source in iterator]
        assert seen == [0, 1, 2]


def test_arrays_are_batched_by_the_global_size(single: Any) -> None:
    iterator = BridgedEpochIterator(single, np.arange(5.0), batch_size=2, shuffle=False)
    sizes = [next(source)[DATA].shape[0] for _, _, source in iterator]
    assert sizes == [2, 2, 1]
    assert iterator.data_spec.shape.as_list()[0] is None


def test_a_distributed_dataset_is_distributed_anew(single: Any) -> None:
    distributed = single.experimental_distribute_dataset(batches(3))
    iterator = BridgedEpochIterator(single, distributed)
    assert [int(next(source)[DATA][0]) for _, _, source in iterator] == [0, 1, 2]


def test_a_function_of_an_input_context_is_asked_for_this_workers_part(single: Any) -> None:
    contexts = []

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        contexts.append(context)
        return batches(3)

    distributed = single.distribute_datasets_from_function(make)
    contexts.clear()
    iterator = BridgedEpochIterator(single, distributed)
    assert [int(next(source)[DATA][0]) for _, _, source in iterator] == [0, 1, 2]
    (context,) = contexts
    assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
    assert context.num_replicas_in_sync == 1


@pytest.mark.parametrize(
    ("make", "n", "steps", "is_endless"),
    [
        (batches, 4, None, False),
        (batches, 4, 4, False),
        (endless, 0, 9, True),
        (unknown, 4, 9, False),
    ],
)
def test_data_that_fits_its_steps(make: Any, n: int, steps: int | None, is_endless: bool) -> None:
    assert check_steps(make(n), steps) == is_endless


def test_endless_data_needs_a_number_of_steps() -> None:
    with pytest.raises(DataError, match=r"endless.*steps_per_epoch"):
        check_steps(endless(0), None)


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(DataError, match=r"4 batches, 6 steps.*\.repeat\(\)"):
        check_steps(batches(4), 6)


class Workers:
    """Stands for a strategy of two workers, whose `exchange` finds this offer of the other's."""

    def __init__(self, seed: int | None, other: str) -> None:
        self.tfdist = self
        self.num_workers, self.seeds = 2, []
        self._seed, self._other = seed, other

    def present_seed(self) -> int | None:
        return self._seed

    def exchange(self, name: str, text: str) -> list[str]:
        return [self._other, text]

    def global_seed(self, seed: int) -> Any:
        self.seeds.append(seed)
        return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("own", "other", "seeds"),
    [
        (None, "None,77", [77]),  # nobody was seeded: the chief's choice
        (5, "5,77", []),  # all alike: one device's order
        (5, "6,77", [77]),  # different seeds would give different orders
        (5, "None,77", [77]),
    ],
)
def test_workers_agree_on_the_order(own: int | None, other: str, seeds: list[int]) -> None:
    iterator = BridgedEpochIterator.__new__(BridgedEpochIterator)
    iterator._distribute_strategy = strategy = Workers(own, other)
    with iterator._same_shuffle_on_all_workers(True):
        pass
    assert strategy.seeds == seeds


@pytest.fixture(autouse=True)
def _random_state() -> Iterator[None]:
    before = random.getstate()
    yield
    random.setstate(before)
