"""What every possible part of a model would cost: tables over its first and last operation.

A part is not the sum of its operations: weights that two of them share are there once, and a tensor
that two of them keep, too. All tables are [n+1, n+1]: entry [i, j] is of operations i to j-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfdist.pipeline.costs import Costs
from tfdist.pipeline.graph import Graph
from tfdist.pipeline.schedule import Schedule

__all__ = ["Loads", "kept_at_once", "make_loads", "peak_memory", "variable_bytes"]


@dataclass(frozen=True)
class Loads:
    """Tables of the possible parts.

    Attributes:
        parameters: trainable and other weights.
        state_bytes: weights, gradients and optimizer slots.
        kept_bytes: activations of one microbatch between its forward and backward step.
        input_bytes: the tensors of one microbatch that come from other parts or from outside.
        flops: of one microbatch's forward step.
        forward: seconds of a forward step; None if not measured.
        backward: seconds of a backward step; None if not measured.
    """

    parameters: np.ndarray
    state_bytes: np.ndarray
    kept_bytes: np.ndarray
    input_bytes: np.ndarray
    flops: np.ndarray
    forward: np.ndarray | None
    backward: np.ndarray | None


def make_loads(graph: Graph, costs: Costs, optimizer_slots: int) -> Loads:
    """Makes the tables.

    Args:
        graph: the model.
        costs: of its operations.
        optimizer_slots: variables that the optimizer keeps for each weight: 2 for Adam.
    """
    size = len(graph) + 1
    parameters, state, kept, taken = (np.zeros((size, size)) for _ in range(4))
    for first in range(len(graph)):
        weights: set[int] = set()
        tensors: set[int] = set()
        outside: set[int] = set()
        count = memory = activations = inputs = 0
        for last in range(first, len(graph)):
            operation, cost = graph.operations[last], costs.operations[last]
            for weight in operation.weights:
                if id(weight) not in weights:
                    weights.add(id(weight))
                    count += int(np.prod(weight.shape, dtype=np.int64))
                    copies = 2 + optimizer_slots if weight.trainable else 1
                    memory += copies * variable_bytes(weight)
            activations += cost.kept_bytes
            for number in cost.kept_tensors:
                if number not in tensors:
                    tensors.add(number)
                    activations += costs.tensor_bytes[number]
            for number in operation.inputs:
                if number not in outside and graph.maker.get(number, -1) < first:
                    outside.add(number)
                    inputs += costs.tensor_bytes[number]
            parameters[first, last + 1], state[first, last + 1] = count, memory
            kept[first, last + 1], taken[first, last + 1] = activations, inputs
    timed = costs.device is not None
    return Loads(
        parameters,
        state,
        kept,
        taken,
        _sums([cost.flops for cost in costs.operations]),
        _sums([cost.forward_seconds or 0.0 for cost in costs.operations]) if timed else None,
        _sums([cost.backward_seconds or 0.0 for cost in costs.operations]) if timed else None,
    )


def kept_at_once(schedule: Schedule, part: int, recompute: str) -> set[tuple[int, int]]:
    """What a part keeps at its moments: (inputs alone, whole activations) of so many microbatches.

    Args:
        schedule: the schedule.
        part: the part.
        recompute: see `Schedule.recomputed`.
    """
    again = schedule.recomputed(recompute)
    light = full = 0
    moments = {(0, 0)}
    for step in schedule.orders[schedule.stage_of(part)]:
        if step.part != part:
            continue
        is_light = step._replace(kind="B") in again
        change = 1 if step.kind == "F" else -1
        if step.kind == "B" and is_light:  # while it computes them again, they are there
            moments.add((light - 1, full + 1))
        light, full = light + change * is_light, full + change * (not is_light)
        moments.add((light, full))
    return moments


def peak_memory(loads: Loads, moments: set[tuple[int, int]]) -> np.ndarray:
    """Bytes that a part needs at its worst moment: state and activations."""
    tables = [light * loads.input_bytes + full * loads.kept_bytes for light, full in moments]
    return loads.state_bytes + np.max(tables, axis=0)


def variable_bytes(variable: object) -> int:
    """Bytes of a Keras variable, allocated or not."""
    import tensorflow as tf

    dtype = tf.as_dtype(variable.dtype)  # type: ignore[attr-defined]
    return int(np.prod(variable.shape, dtype=np.int64)) * int(dtype.size)  # type: ignore[attr-defined]


def _sums(values: Sequence[float]) -> np.ndarray:
    """[i, j]: the sum of values i to j-1, for i <= j."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.triu(total[None, :] - total[:, None])
