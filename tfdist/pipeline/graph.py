"""A model as a list of operations with tensors between them, and what a cut of the list separates.

    inputs -> op 0 -> op 1 -> ... -> op n-1 -> outputs
                   ^
                 cut 1: between op 0 and op 1

A cut is named by the number of operations before it. A stage is a range of operations between two
cuts; what crosses a cut is every tensor that is made before it and used behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tfdist.errors import PartitionError, explain
from tfdist.keras_bridge.layer_graph import (
    CallGraph,
    LayerCall,
    Tensor,
    has_layer_graph,
    read_calls,
)

__all__ = ["Graph", "Shared", "read_graph"]


@dataclass(frozen=True, eq=False)
class Shared:
    """Weights that several operations use.

    Attributes:
        weights: the variables.
        operations: numbers of the operations, in order.
    """

    weights: tuple[Any, ...] = field(repr=False)
    operations: tuple[int, ...]

    @property
    def can_be_tied(self) -> bool:
        """Whether the operations may lie on several stages: the optimizer alone changes the weights.

        A moving average that calls write to has to stay in one place.
        """
        return all(weight.trainable for weight in self.weights)

    def between(self, cut: int) -> bool:
        """Whether a cut separates the operations."""
        return self.operations[0] < cut <= self.operations[-1]


@dataclass(frozen=True, eq=False)
class Graph:
    """A model's operations in an order in which they can be computed.

    Attributes:
        model: the Keras model.
        calls: what was read from it.
    """

    model: Any
    calls: CallGraph

    @property
    def operations(self) -> tuple[LayerCall, ...]:
        """The operations, in order."""
        return self.calls.calls

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor, by number."""
        return self.calls.tensors

    @property
    def inputs(self) -> tuple[int, ...]:
        """Numbers of the model's inputs."""
        return self.calls.inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """Numbers of the model's outputs."""
        return self.calls.outputs

    def __len__(self) -> int:
        """The number of operations."""
        return len(self.operations)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The operations' names."""
        return tuple(operation.name for operation in self.operations)

    @cached_property
    def maker(self) -> dict[int, int]:
        """The operation that makes each tensor; the model's inputs have none."""
        return {
            number: index
            for index, operation in enumerate(self.operations)
            for number in operation.outputs
        }

    @cached_property
    def last_use(self) -> dict[int, int]:
        """The last operation that takes each tensor; `len(self)` for the model's outputs."""
        last = {
            number: index
            for index, operation in enumerate(self.operations)
            for number in operation.inputs
        }
        last.update((number, len(self)) for number in self.outputs if number in self.maker)
        return last

    @cached_property
    def shared(self) -> tuple[Shared, ...]:
        """The weights that more than one operation uses, by the operations that use them."""
        users: dict[int, list[int]] = {}
        variables: dict[int, Any] = {}
        for index, operation in enumerate(self.operations):
            for weight in _unique(operation.weights):
                users.setdefault(id(weight), []).append(index)
                variables[id(weight)] = weight
        groups: dict[tuple[int, ...], list[Any]] = {}
        for key, indices in users.items():
            if len(indices) > 1:
                groups.setdefault(tuple(indices), []).append(variables[key])
        return tuple(Shared(tuple(weights), indices) for indices, weights in groups.items())

    def crossing(self, cut: int) -> tuple[int, ...]:
        """Numbers of the tensors that are made before a cut and used behind it.

        Inputs of the model cross none: each stage is given those that it takes. Neither do the
        outputs that are made before the cut and used no more.
        """
        return tuple(
            number
            for number, maker in self.maker.items()
            if maker < cut and any(cut <= user < len(self) for user in self.users[number])
        )

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """The operations that take each tensor."""
        found: dict[int, list[int]] = {number: [] for number in range(len(self.tensors))}
        for index, operation in enumerate(self.operations):
            for number in dict.fromkeys(operation.inputs):
                found[number].append(index)
        return {number: tuple(indices) for number, indices in found.items()}


def read_graph(model: Any) -> Graph:
    """Reads a functional or Sequential model; nested models are entered.

    Args:
        model: the model; its weights are not touched.

    Returns:
        The graph.

    Raises:
        PartitionError: the model has no layer graph, or nothing in it.
    """
    import keras

    if not isinstance(model, keras.Model):
        raise PartitionError(
            explain(
                "Only a Keras model can be split into stages",
                received=f"{type(model).__name__}",
                fix="Give a functional or Sequential keras.Model",
            )
        )
    if not has_layer_graph(model):
        raise PartitionError(_no_graph(model))
    graph = Graph(model, read_calls(model))
    if not graph.operations:
        raise PartitionError(
            explain(
                "The model has no layers to split",
                received=f"model {model.name!r}",
                fix="Add layers between its inputs and outputs",
            )
        )
    return graph


def _no_graph(model: Any) -> str:
    import keras

    received = f"model {model.name!r} of class {type(model).__name__}"
    if isinstance(model, keras.Sequential) and type(model).call is keras.Sequential.call:
        return explain(
            "A Sequential model has no layer graph before it knows its input's shape",
            received=received,
            fix="Begin it with keras.Input(shape), or call model.build(input_shape) first",
        )
    return explain(
        "A model whose `call` is written in Python has no layer graph that could be cut",
        received=received,
        fix="Build it as a functional model: x = keras.Input(shape); y = layer(x); ...; "
        "keras.Model(x, y). Parts with a Python `call` may stay as layers of their own, each of "
        "which lies on one stage; a subclass that only changes train_step can call "
        "super().__init__(inputs, outputs) and leave `call` alone",
    )


def _unique(values: Iterable[Any]) -> list[Any]:
    """The values without repetition, by identity."""
    return list({id(value): value for value in values}.values())
