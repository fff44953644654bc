"""Models of the parts of a model: each runs its own operations on the model's own layers.

    inputs of the model ----+-----------+
                            v           v
                        [part 0] --> [part 1] --> outputs of the model
                            |  skips, masks ^
                            +---------------+

A part takes and gives flat lists of tensors; its ports say which. A Keras mask that belongs to a
tensor crosses with it, as a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from tfdist.keras_bridge.layer_graph import (
    LayerCall,
    get_mask,
    pack_outputs,
    set_mask,
    standardize_inputs,
)
from tfdist.pipeline.graph import Graph

__all__ = ["Port", "StageModel", "make_stages", "run_stages"]


class Port(NamedTuple):
    """What enters or leaves a part: a tensor of the graph, or the mask of one."""

    tensor: int
    is_mask: bool = False


class StageModel:
    """A part of a model.

    Attributes:
        graph: the whole model's operations.
        part: the number of the part.
        operations: its operations, in order.
        inputs: ports of what it takes: inputs of the model, then tensors of other parts.
        outputs: ports of what it gives: outputs of the model, and tensors for other parts.
    """

    def __init__(self, graph: Graph, part: int, first: int, last: int) -> None:
        """Makes the model of the operations `first` to `last - 1`; creates no variables."""
        self.graph = graph
        self.part = part
        self.operations: tuple[LayerCall, ...] = graph.operations[first:last]
        made = {number for operation in self.operations for number in operation.outputs}
        taken = dict.fromkeys(
            number for operation in self.operations for number in operation.inputs
        )
        entering = sorted(
            (number for number in taken if number not in made),
            key=lambda number: (number not in graph.inputs, number),
        )
        leaving = [
            number
            for number in sorted(made)
            if number in graph.outputs or any(user >= last for user in graph.users[number])
        ]
        self.inputs = self._ports(entering)
        self.outputs = self._ports(leaving)

    def _ports(self, numbers: Iterable[int]) -> tuple[Port, ...]:
        ports: list[Port] = []
        for number in numbers:
            ports.append(Port(number))
            if self.graph.tensors[number].masked:
                ports.append(Port(number, is_mask=True))
        return tuple(ports)

    @cached_property
    def layers(self) -> tuple[Any, ...]:
        """Its layers, each once."""
        return tuple({id(o.operation): o.operation for o in self.operations if o.is_layer}.values())

    @property
    def variables(self) -> list[Any]:
        """Its variables, each once: weights and seeds."""
        return _unique(v for operation in self.operations for v in operation.variables)

    @property
    def weights(self) -> list[Any]:
        """Its weights, each once."""
        return _unique(v for operation in self.operations for v in operation.weights)

    @property
    def trainable_variables(self) -> list[Any]:
        """Those of its weights that the optimizer changes."""
        return [weight for weight in self.weights if weight.trainable]

    @property
    def non_trainable_variables(self) -> list[Any]:
        """Its other variables: moving averages, frozen weights, seeds."""
        return [variable for variable in self.variables if not variable.trainable]

    def __call__(self, inputs: Sequence[Any], training: bool | None = None) -> list[Any]:
        """Runs the part.

        Args:
            inputs: a tensor for each input port.
            training: as of `model(x, training=...)`.

        Returns:
            A tensor for each output port.
        """
        values: dict[int, Any] = {}
        for port, value in zip(self.inputs, inputs):
            if port.is_mask:
                set_mask(values[port.tensor], value)
            else:
                values[port.tensor] = value
        for operation in self.operations:
            results = operation([values[number] for number in operation.inputs], training)
            values.update(zip(operation.outputs, results))
        return [
            get_mask(values[port.tensor]) if port.is_mask else values[port.tensor]
            for port in self.outputs
        ]

    def __repr__(self) -> str:
        """The part and the operations at its ends."""
        ends = f"{self.operations[0].name} to {self.operations[-1].name}"
        return f"<StageModel {self.part}: {ends}>"


def make_stages(graph: Graph, cuts: Sequence[int]) -> tuple[StageModel, ...]:
    """Makes the models of the parts between the cuts."""
    edges = (0, *cuts, len(graph))
    return tuple(
        StageModel(graph, part, first, last) for part, (first, last) in enumerate(pairwise(edges))
    )


def run_stages(stages: Sequence[StageModel], inputs: Any, training: bool | None = None) -> Any:
    """Runs the parts one after the other; gives what the model gives.

    Args:
        stages: all parts of one model.
        inputs: what the model is called with.
        training: as of `model(x, training=...)`.
    """
    graph = stages[0].graph
    flat = standardize_inputs(graph.model, inputs)
    values: dict[Port, Any] = {Port(number): x for number, x in zip(graph.inputs, flat)}
    for stage in stages:
        values.update(zip(stage.outputs, stage(_pick(values, stage.inputs), training)))
    return pack_outputs(graph.model, _pick(values, [Port(number) for number in graph.outputs]))


def _pick(values: Mapping[Port, Any], ports: Sequence[Port]) -> list[Any]:
    return [values[port] for port in ports]


def _unique(values: Iterable[Any]) -> list[Any]:
    return list({id(value): value for value in values}.values())
