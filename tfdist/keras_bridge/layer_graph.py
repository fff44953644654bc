"""Reads the calls of layers that a functional model is made of, and runs any part of them.

Keras has no public way to walk a model's calls in their order, or to run some of them with values
of one's own for the tensors between: `keras.Function` over intermediate tensors does not enter
nested models and forgets `training` and masks, and a `keras.Model` over them adds a call to each of
the shared layers, after which `layer.output` fails. What is read here is what
`Functional._run_through_graph` reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import tree
from keras.src import backend
from keras.src.models.functional import Functional, operation_fn

__all__ = [
    "CallGraph",
    "LayerCall",
    "Tensor",
    "has_layer_graph",
    "pack_outputs",
    "read_calls",
    "standardize_inputs",
]


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor before there is data.

    Attributes:
        name: the name of what made it.
        shape: None where the size is not known.
        dtype: its dtype.
        masked: whether a Keras mask travels with it.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    masked: bool = False


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One call of a layer or operation.

    Attributes:
        operation: the layer, or another operation such as `keras.ops.Add`.
        name: its name; with those of the nested models around it, and the number of the call if
            the layer is called several times.
        inputs: numbers of the tensors that it takes.
        outputs: numbers of the tensors that it makes.
    """

    operation: Any
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    _node: Any = field(repr=False)
    _symbols: tuple[int, ...] = field(repr=False)
    _owner: Any = field(repr=False)
    _training: bool | None = field(repr=False, default=None)
    _enters: bool = field(repr=False, default=False)

    @property
    def kind(self) -> str:
        """The class of the layer or operation."""
        return "Enter" if self._enters else type(self.operation).__name__

    @property
    def is_layer(self) -> bool:
        """Whether it is a layer, not a bare operation."""
        return isinstance(self.operation, keras.layers.Layer) and not self._enters

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's keyword arguments that are not tensors."""
        return {
            name: value
            for name, value in self._node.arguments.kwargs.items()
            if not isinstance(value, backend.KerasTensor)
        }

    @property
    def weights(self) -> list[Any]:
        """The variables of the layer, without seeds; of a bare operation, those it is given."""
        if self._enters:
            return []
        if self.is_layer:
            return list(self.operation.weights)
        return self._given_variables()

    @property
    def variables(self) -> list[Any]:
        """All variables that the call reads or writes: the weights and the seeds."""
        if self._enters:
            return []
        if self.is_layer:
            return list(self.operation.variables)
        return self._given_variables()

    def __call__(self, values: Sequence[Any], training: bool | None = None) -> list[Any]:
        """Calls the layer as the model would.

        Args:
            values: the tensors of `inputs`.
            training: as of `model(x, training=...)`.

        Returns:
            The tensors of `outputs`.
        """
        arguments, keywords = self._node.arguments.fill_in(dict(zip(self._symbols, values)))
        if self._enters:
            return standardize_inputs(self.operation, arguments[0])
        training = self._training if training is None else training
        with _autocast(self):
            outputs = operation_fn(self.operation, training=training)(*arguments, **keywords)
        return tree.flatten(outputs)

    def _given_variables(self) -> list[Any]:
        given = tree.flatten((self._node.arguments.args, self._node.arguments.kwargs))
        return [value for value in given if isinstance(value, keras.Variable)]


@dataclass(frozen=True, eq=False)
class CallGraph:
    """A model's calls in an order in which they can be made.

    Attributes:
        inputs: numbers of the model's input tensors, flat.
        outputs: numbers of its output tensors, flat; one may be there twice, or be an input.
        calls: the calls.
        tensors: every tensor, by number.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[LayerCall, ...]
    tensors: tuple[Tensor, ...]


def has_layer_graph(model: Any) -> bool:
    """Whether the model's outputs follow from its layer graph alone."""
    return _functional(model) is not None


def read_calls(model: Any) -> CallGraph:
    """Reads a functional or built Sequential model, and the models nested in it.

    A nested model with a layer graph is entered, unless it is called with more than its inputs, or
    with masked inputs (which Keras hands around its layers).

    Args:
        model: a model for which `has_layer_graph` is true.

    Returns:
        Its calls.
    """
    reader = _Reader()
    functional = _functional(model)
    inputs = [reader.tensor(symbol, symbol.name) for symbol in functional.inputs]
    outputs = reader.read(functional, inputs, prefix="", training=None)
    return CallGraph(tuple(inputs), tuple(outputs), tuple(reader.calls), tuple(reader.tensors))


def standardize_inputs(model: Any, inputs: Any) -> list[Any]:
    """Brings what a model is called with to the flat list of tensors that its layers see."""
    return list(_functional(model)._standardize_inputs(inputs))


def pack_outputs(model: Any, outputs: Sequence[Any]) -> Any:
    """Gives a flat list of output tensors the structure that the model's call returns."""
    packed = tree.pack_sequence_as(_functional(model)._outputs_struct, list(outputs))
    single = isinstance(packed, (list, tuple)) and len(packed) == 1
    return packed[0] if single else packed


def get_mask(tensor: Any) -> Any:
    """The mask that Keras attached to a tensor, or None."""
    return backend.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Attaches a mask to a tensor."""
    backend.set_keras_mask(tensor, mask)


class _Reader:
    """Collects calls and tensors while it walks a model."""

    def __init__(self) -> None:
        self.calls: list[LayerCall] = []
        self.tensors: list[Tensor] = []
        self._times_called: dict[int, int] = {}

    def tensor(self, symbol: Any, name: str) -> int:
        masked = backend.get_keras_mask(symbol) is not None
        dtype = backend.standardize_dtype(symbol.dtype)
        self.tensors.append(Tensor(name, tuple(symbol.shape), dtype, masked))
        return len(self.tensors) - 1

    def read(
        self, functional: Any, inputs: Sequence[int], prefix: str, training: bool | None
    ) -> list[int]:
        """Reads a model whose inputs are the given tensors; returns its outputs."""
        known = {id(symbol): number for symbol, number in zip(functional.inputs, inputs)}
        for node in _in_order(functional):
            taken = [known[id(symbol)] for symbol in node.input_tensors]
            nested = self._nested(node, taken)
            name = prefix + node.operation.name
            if nested is None:
                outputs = self._call(node, taken, name, functional, training)
            else:
                entered = self._enter(node, nested, taken, name, functional)
                given = node.arguments.kwargs.get("training")
                inner = training if given is None else given
                outputs = self.read(nested, entered, f"{name}/", inner)
            known.update((id(symbol), number) for symbol, number in zip(node.outputs, outputs))
        return [known[id(symbol)] for symbol in functional.outputs]

    def _nested(self, node: Any, taken: Sequence[int]) -> Any:
        """The model that a call may be replaced by, or None."""
        nested = _functional(node.operation)
        others = [k for k, v in node.arguments.kwargs.items() if v is not None and k != "training"]
        if nested is None or others or len(node.arguments.args) != 1:
            return None
        return None if any(self.tensors[number].masked for number in taken) else nested

    def _call(
        self, node: Any, taken: Sequence[int], name: str, owner: Any, training: bool | None
    ) -> list[int]:
        times = self._times_called.get(id(node.operation), 0) + 1
        self._times_called[id(node.operation)] = times
        name += f"#{times}" if times > 1 else ""
        several = len(node.outputs) > 1
        outputs = [
            self.tensor(symbol, f"{name}:{index}" if several else name)
            for index, symbol in enumerate(node.outputs)
        ]
        self._add(node.operation, name, taken, outputs, node, owner, training)
        return outputs

    def _enter(
        self, node: Any, nested: Any, taken: Sequence[int], name: str, owner: Any
    ) -> list[int]:
        """The conversion of a nested model's inputs, where there is something to convert."""
        flat = tree.flatten(node.arguments.args[0])
        same = len(flat) == len(nested.inputs) and all(
            backend.standardize_dtype(a.dtype) == backend.standardize_dtype(b.dtype)
            and len(a.shape) == len(b.shape)
            for a, b in zip(flat, nested.inputs)
        )
        in_order = [id(symbol) for symbol in flat] == [id(s) for s in node.input_tensors]
        if same and in_order and not isinstance(node.arguments.args[0], dict):
            return list(taken)
        entered = [self.tensor(symbol, f"{name}/{symbol.name}") for symbol in nested.inputs]
        self._add(node.operation, f"{name}/inputs", taken, entered, node, owner, None, enters=True)
        return entered

    def _add(
        self,
        operation: Any,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        node: Any,
        owner: Any,
        training: bool | None,
        enters: bool = False,
    ) -> None:
        symbols = tuple(id(symbol) for symbol in node.input_tensors)
        self.calls.append(
            LayerCall(
                operation,
                name,
                tuple(inputs),
                tuple(outputs),
                node,
                symbols,
                owner,
                training,
                enters,
            )
        )


def _functional(model: Any) -> Any:
    """The layer graph of a model, or None if its `call` may do anything."""
    if isinstance(model, keras.Sequential):
        return model._functional if type(model).call is keras.Sequential.call else None
    if isinstance(model, Functional) and type(model).call is Functional.call:
        return model
    return None


def _in_order(functional: Any) -> list[Any]:
    """The calls of one model, depth first from its outputs: a branch is walked to its end.

    Keras's own order goes by the distance to the outputs, which mixes the branches of a model; a
    cut would then separate all of them.
    """
    given = {id(symbol) for symbol in functional.inputs}
    ordered: dict[int, Any] = {}
    for symbol in functional.outputs:
        waiting: list[tuple[Any, Iterator[Any]]] = []
        _visit(symbol, given, ordered, waiting)
        while waiting:
            node, symbols = waiting[-1]
            following = next(symbols, None)
            if following is None:
                waiting.pop()
                ordered.setdefault(id(node), node)
            else:
                _visit(following, given, ordered, waiting)
    return list(ordered.values())


def _visit(
    symbol: Any, given: set[int], ordered: Mapping[int, Any], waiting: list[tuple[Any, Any]]
) -> None:
    if id(symbol) in given:
        return
    history = symbol._keras_history
    node = history.operation._inbound_nodes[history.node_index]
    if id(node) not in ordered:
        waiting.append((node, iter(node.input_tensors)))


def _autocast(call: LayerCall) -> Any:
    """What the model around a bare operation does to the variables that it is given."""
    owner = call._owner
    if call.is_layer or owner.compute_dtype == owner.variable_dtype:
        return contextlib.nullcontext()
    return backend.AutocastScope(owner.compute_dtype)
