"""Where variables are born: on the parameter server that holds the least."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.distribute import parameter_server_strategy_v2

from tfdist.strategies.placement import Placement

_EXTENDED = parameter_server_strategy_v2.ParameterServerStrategyV2Extended


class _Extended:
    """Places as TensorFlow does: server `_variable_count % num_ps`."""

    def __init__(self, num_ps: int) -> None:
        self._variable_count = 0
        self._num_ps = num_ps

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        if "colocate_with" in kwargs:
            device = kwargs["colocate_with"].device
        else:
            device = f"/job:ps/replica:0/task:{self._variable_count % self._num_ps}/device:CPU:0"
            self._variable_count += 1
        return SimpleNamespace(
            device=device, dtype=tf.float32, shape=tf.TensorShape(kwargs["shape"])
        )


@pytest.mark.parametrize(("by_bytes", "expected"), [(True, [12016, 12004]), (False, [20000, 20])])
def test_ten_variables_of_unequal_size(by_bytes: bool, expected: list[int]) -> None:
    """Tensorflow issue 45291: dealt out in turn, one server gets all the big ones."""
    extended, placement = _Extended(2), Placement(2, by_bytes)
    placement.install(extended)
    for index in range(10):
        extended._create_variable(None, shape=(1000 if index % 2 == 0 else 1,))
    assert sum(placement.bytes) == 20020
    if by_bytes:
        assert max(placement.bytes) - min(placement.bytes) <= 4000
    else:
        assert placement.bytes == expected


def test_slots_go_beside_their_variable_and_count() -> None:
    extended, placement = _Extended(2), Placement(2, by_bytes=True)
    placement.install(extended)
    first = extended._create_variable(None, shape=(100,))
    extended._create_variable(None, shape=(100,), colocate_with=first)
    assert placement.bytes == [800, 0]
    extended._create_variable(None, shape=(1,))
    assert placement.bytes == [800, 4]
    assert placement.describe() == "ps 0: 2 variables, 800 bytes; ps 1: 1 variables, 4 bytes"


def test_large_sizes_are_readable() -> None:
    placement = Placement(1, by_bytes=True)
    placement.bytes = [3_200_000_000]
    assert placement.describe() == "ps 0: 0 variables, 3.2 GB"


def test_tensorflow_still_places_by_its_count_of_variables() -> None:
    """The placement sets `_variable_count`, which has no public name."""
    names = _EXTENDED._create_variable_round_robin.__code__.co_names
    assert {"_variable_count", "_num_ps"} <= set(names)
