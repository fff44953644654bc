"""What stock Keras does with an optimizer whose table is in shards; see `upstream_table`."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras_bridge.upstream_table import stands_for
from parity.lazy import keras

_OPTIMIZER = "keras.src.optimizers.base_optimizer:BaseOptimizer"


def _built(shards: int) -> Any:
    """Returns an optimizer of a table of 6 rows in so many variables, whose slots count on."""
    rows = 6 // shards
    table = [keras.Variable(np.zeros((rows, 2), "float32"), name=f"t{i}") for i in range(shards)]
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build(table)
    return optimizer


@stands_for(
    _OPTIMIZER,
    "add_variable_from_reference",
    "a slot does not know its variable, so that the slots of a table's shards can't be found",
)
def slots_know_no_variable(strategy: Any) -> tuple[bool, Any]:
    variable = keras.Variable(np.zeros((3, 2), "float32"))
    optimizer = keras.optimizers.Adagrad(0.1)
    optimizer.build([variable])
    slot = optimizer.variables[-1]
    leads_back = [name for name, value in vars(slot).items() if value is variable]
    return not leads_back, leads_back


@stands_for(
    _OPTIMIZER,
    "save_own_variables",
    "the state of a table in shards is saved by shard (tensorflow issues 73836, 62215)",
)
def state_is_saved_by_shard(strategy: Any) -> tuple[bool, Any]:
    shapes = []
    for shards in (1, 2):
        store: dict[str, Any] = {}
        _built(shards).save_own_variables(store)
        shapes.append(sorted(np.shape(value) for value in store.values()))
    return shapes[0] != shapes[1], shapes


@stands_for(
    _OPTIMIZER,
    "load_own_variables",
    "an optimizer whose table has another number of shards is not restored, with a warning",
)
def state_of_other_shards_is_lost(strategy: Any) -> tuple[bool, Any]:
    saved = _built(2)
    saved.variables[-1].assign(np.full((3, 2), 7.0))
    store: dict[str, Any] = {}
    saved.save_own_variables(store)
    other = _built(3)
    other.load_own_variables(store)
    seen = float(np.max(other.variables[-1].numpy()))
    return seen != 7.0, seen
