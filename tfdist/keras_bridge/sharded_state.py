"""An optimizer's state of a table in shards, saved as that of one table.

Keras saves an optimizer's variables by number. With Adam and a table in two shards:

    variables    iteration, rate, m0, v0, m1, v1, ...      of shard 0, of shard 1, of what follows
    file         iteration, rate, M,  V,          ...      M = rows of m0, then of m1

which is the file of a model whose table is in one piece, so that it can be loaded with any number
of shards. A slot that hasn't its shard's shape (Adafactor's factors) can't be put together: then
the variables are saved as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdist.keras_bridge.patching import Repair, apply_repairs

__all__ = ["REPAIRS", "mark"]

_SHARD = "_tfdist_shard"  # of a variable: (its table's variables, its number)
_OF = "_tfdist_slot_of"  # of an optimizer's variable: the shard it belongs to


def mark(table: Sequence[Any]) -> None:
    """Tells optimizers that some variables are the shards of one table.

    Args:
        table: Keras variables, in order; the rows of one follow on those of the one before.
    """
    apply_repairs(REPAIRS)  # this layer also works without a strategy of tfdist's
    for number, variable in enumerate(table):
        setattr(variable, _SHARD, (id(table[0]), number))


def _add_slot(
    original: Callable[..., Any], self: Any, reference_variable: Any, *args: Any, **kwargs: Any
) -> Any:
    """Notes which shard a slot belongs to."""
    slot = original(self, reference_variable, *args, **kwargs)
    if hasattr(reference_variable, _SHARD):
        setattr(slot, _OF, reference_variable)
    return slot


def _groups(variables: Sequence[Any]) -> list[list[Any]] | None:
    """Returns an optimizer's variables in the order of the file, those of one table together.

    Args:
        variables: an optimizer's.

    Returns:
        Groups; most of one variable. None if nothing is in shards, or can't be put together.
    """
    groups: list[list[Any]] = []
    tables: dict[tuple[int, int], list[Any]] = {}
    slots: Counter[int] = Counter()
    for variable in variables:
        shard = getattr(variable, _OF, None)
        if shard is None:
            groups.append([variable])
            continue
        if tuple(variable.shape) != tuple(shard.shape):
            return None
        table, _ = getattr(shard, _SHARD)
        key = (table, slots[id(shard)])  # the shard's first slot, its second, ...
        slots[id(shard)] += 1
        if key not in tables:
            tables[key] = []
            groups.append(tables[key])
        tables[key].append(variable)
    return groups if tables else None


def _save(original: Callable[..., Any], self: Any, store: Any) -> None:
    groups = _groups(self.variables)
    if groups is None:
        original(self, store)
        return
    for number, group in enumerate(groups):
        values = [variable.numpy() for variable in group]
        store[str(number)] = values[0] if len(values) == 1 else np.concatenate(values, axis=0)


def _load(original: Callable[..., Any], self: Any, store: Any) -> None:
    groups = _groups(self.variables)
    if groups is None or len(store.keys()) != len(groups):
        original(self, store)  # which says what doesn't fit
        return
    for number, group in enumerate(groups):
        value = store[str(number)]
        if len(group) == 1:
            group[0].assign(value)
            continue
        first = 0
        for variable in group:
            rows = variable.shape[0]
            variable.assign(value[first : first + rows])
            first += rows


_OPTIMIZER = "keras.src.optimizers.base_optimizer:BaseOptimizer"
REPAIRS = (
    Repair(
        _OPTIMIZER,
        "add_variable_from_reference",
        "a slot does not know its variable, so that the slots of a table's shards can't be found",
        _add_slot,
    ),
    Repair(
        _OPTIMIZER,
        "save_own_variables",
        "the state of a table in shards is saved by shard (tensorflow issues 73836, 62215)",
        _save,
    ),
    Repair(
        _OPTIMIZER,
        "load_own_variables",
        "an optimizer whose table has another number of shards is not restored, with a warning",
        _load,
    ),
)
