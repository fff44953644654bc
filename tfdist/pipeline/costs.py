"""What each operation of a model costs for one microbatch: weights, FLOPs, activations, seconds.

Every operation is traced by itself, forward and backward, with its weights as arguments: nothing is
trained, no moving average or seed changes, and a model whose weights were never allocated can be
planned too. What the backward half of the trace takes from the forward half is what has to be kept
between them. Equal calls (class, settings, shapes) are traced and timed once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.errors import PartitionError, explain
from tfdist.keras_bridge.layer_graph import LayerCall
from tfdist.pipeline.flops import flops_by_formula
from tfdist.pipeline.graph import Graph

__all__ = ["Cost", "Costs", "measure_costs"]

# These hand on their input's memory.
_ALIASES = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "Snapshot"})
# These make another form of a weight.
_TURNS = frozenset({"Cast", "Transpose"})

_SECONDS_PER_TIMING = 0.05
_MOST_ROUNDS = 20


@dataclass(frozen=True)
class Cost:
    """The cost of one operation for one microbatch.

    Attributes:
        flops: floating-point operations of the forward pass; the backward pass needs about twice
            as many.
        flops_source: "formula" (known layers), "graph" (counted by TensorFlow's profiler in the
            traced forward pass) or "none".
        kept_bytes: what the backward pass needs from inside of the operation.
        kept_tensors: numbers of the tensors, taken or made, that the backward pass needs.
        forward_seconds: of one forward pass; None if not measured.
        backward_seconds: of one backward pass; None if not measured.
    """

    flops: int
    flops_source: str
    kept_bytes: int
    kept_tensors: tuple[int, ...]
    forward_seconds: float | None = None
    backward_seconds: float | None = None


@dataclass(frozen=True)
class Costs:
    """The costs of a model's operations for one microbatch.

    Attributes:
        operations: for each operation.
        shapes: the full shape of each tensor.
        tensor_bytes: the bytes of each tensor.
        rows: rows of the microbatch.
        device: where it was timed; None if it was not.
    """

    operations: tuple[Cost, ...]
    shapes: tuple[tuple[int, ...], ...]
    tensor_bytes: tuple[int, ...]
    rows: int
    device: str | None = None


@dataclass(frozen=True)
class _Traced:
    """What a trace of one call says; positions count the inputs, then the outputs.

    Attributes:
        output_specs: shapes and dtypes of the outputs.
        flops: see `Cost`.
        flops_source: see `Cost`.
        kept_bytes: see `Cost`.
        kept_positions: inputs and outputs that the backward pass needs.
        shares_memory: for each output, the input that it is in another shape, or None.
        seconds: of a forward and a backward pass, if measured.
    """

    output_specs: tuple[tf.TensorSpec, ...]
    flops: int
    flops_source: str
    kept_bytes: int
    kept_positions: tuple[int, ...]
    shares_memory: tuple[int | None, ...]
    seconds: tuple[float, float] | None


def measure_costs(
    graph: Graph,
    rows: int,
    *,
    timed: bool = False,
    device: str | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> Costs:
    """Finds the cost of each operation.

    Args:
        graph: the model.
        rows: rows of a microbatch.
        timed: whether to run and time each operation, forward and backward.
        device: where to run them; None takes TensorFlow's default.
        input_shapes: shapes, without the batch, of inputs of unknown size, by the input's name.

    Returns:
        The costs.

    Raises:
        PartitionError: an input's shape is not known.
    """
    specs: dict[int, tf.TensorSpec] = {
        number: tf.TensorSpec(_input_shape(graph, number, rows, input_shapes or {}), dtype)
        for number, dtype in ((n, graph.tensors[n].dtype) for n in graph.inputs)
    }
    seen: dict[Any, _Traced] = {}
    costs = []
    memory = list(range(len(graph.tensors)))  # the tensor whose memory each tensor is
    for call in graph.operations:
        taken = [specs[number] for number in call.inputs]
        key = _key(call, taken)
        if key not in seen:
            seen[key] = _trace(call, taken, timed, device)
        traced = seen[key]
        specs.update(zip(call.outputs, traced.output_specs))
        for number, source in zip(call.outputs, traced.shares_memory):
            if source is not None:
                memory[number] = memory[call.inputs[source]]
        numbers = [memory[number] for number in (*call.inputs, *call.outputs)]
        cost = Cost(
            traced.flops,
            traced.flops_source,
            traced.kept_bytes,
            tuple(dict.fromkeys(numbers[position] for position in traced.kept_positions)),
        )
        if traced.seconds is not None:
            forward, backward = traced.seconds
            cost = dataclasses.replace(cost, forward_seconds=forward, backward_seconds=backward)
        costs.append(cost)
    count = len(graph.tensors)
    return Costs(
        tuple(costs),
        tuple(tuple(specs[number].shape) if number in specs else () for number in range(count)),
        tuple(_bytes(specs[number]) if number in specs else 0 for number in range(count)),
        rows,
        (device or _default_device()) if timed else None,
    )


def _input_shape(
    graph: Graph, number: int, rows: int, given: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    tensor = graph.tensors[number]
    shape = (rows, *(given.get(tensor.name) or tensor.shape[1:]))
    if any(size is None for size in shape):
        raise PartitionError(
            explain(
                "The size of an activation follows from the input's shape, which is not known",
                received=f"input {tensor.name!r} of shape {tensor.shape}",
                fix=f"Say it: split(..., input_shapes={{{tensor.name!r}: (...)}}), "
                "without the batch",
            )
        )
    return tuple(int(size) for size in shape)  # type: ignore[arg-type]


def _key(call: LayerCall, specs: Sequence[tf.TensorSpec]) -> Any:
    """Equal for calls that do the same; unique where that is not known."""
    shapes = tuple((tuple(spec.shape), spec.dtype.name) for spec in specs)
    weights = tuple((tuple(v.shape), v.dtype, v.trainable) for v in call.variables)
    try:
        config = dict(call.operation.get_config())
        config.pop("name", None)
        text = json.dumps(config, sort_keys=True, default=_refuse)
        arguments = json.dumps(call.arguments, sort_keys=True, default=_refuse)
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return (id(call), shapes)
    if not call.is_layer:  # a bare operation may hold numbers that its config does not tell
        return (id(call), shapes)
    return (type(call.operation), text, arguments, shapes, weights, len(set(call.inputs)))


def _refuse(value: Any) -> None:
    raise TypeError(type(value).__name__)


def _runner(call: LayerCall) -> Callable[..., list[tf.Tensor]]:
    """The call as a function of its inputs and variables, without effects."""
    variables = call.variables

    def run(inputs: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # Leaving a scope would allocate what a scope around the model's building did not.
        state = list(zip(variables, values))
        with keras.StatelessScope(state, initialize_variables=False):
            return [tf.convert_to_tensor(y) for y in call(inputs, training=True)]

    return run


def _trace(
    call: LayerCall, specs: Sequence[tf.TensorSpec], timed: bool, device: str | None
) -> _Traced:
    run = _runner(call)
    found: dict[str, Any] = {}

    def both(inputs: list[tf.Tensor], values: list[tf.Tensor]) -> Any:
        graph = tf.compat.v1.get_default_graph()
        outputs = run(inputs, values)
        forward = {op.name for op in graph.get_operations()}
        gradients = _gradients(call, outputs, inputs, values)
        backward = [op for op in graph.get_operations() if op.name not in forward]
        found["kept"] = _kept(backward, forward, inputs, outputs, values)
        known = {x.ref(): position for position, x in enumerate(inputs)}
        found["shares"] = tuple(known.get(_source(y).ref()) for y in outputs)
        return outputs, gradients

    state = [tf.TensorSpec(v.shape, v.dtype) for v in call.variables]
    whole = tf.function(both)
    concrete = whole.get_concrete_function(list(specs), state)
    outputs = concrete.structured_outputs[0]
    output_specs = tuple(tf.TensorSpec(y.shape, y.dtype) for y in outputs)
    kept_bytes, positions = found["kept"]
    flops, source = _count(call, run, specs, state, output_specs)
    seconds = _time(call, run, whole, specs, device) if timed else None
    return _Traced(output_specs, flops, source, kept_bytes, positions, found["shares"], seconds)


def _gradients(
    call: LayerCall,
    outputs: Sequence[tf.Tensor],
    inputs: Sequence[tf.Tensor],
    values: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Gradients of the float outputs, by float inputs and trainable weights."""
    trainable = [x for v, x in zip(call.variables, values) if v.trainable]
    sources = [x for x in (*inputs, *trainable) if x.dtype.is_floating]
    targets = [y for y in outputs if y.dtype.is_floating]
    if not sources or not targets:
        return []
    return [
        tf.convert_to_tensor(gradient)
        for gradient in tf.gradients(targets, sources)
        if gradient is not None
    ]


def _kept(
    backward: Sequence[tf.Operation],
    forward: set[str],
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    values: Sequence[tf.Tensor],
) -> tuple[int, tuple[int, ...]]:
    """What the backward operations take from the forward ones: bytes inside, and tensors outside."""
    # In this order, so that an output which is an input counts as the input.
    both = list(enumerate((*inputs, *outputs)))
    outside = {_source(x).ref(): position for position, x in reversed(both)}
    weights = {x.ref() for x in values}
    inside, positions = {}, set()
    for operation in backward:
        for tensor in operation.inputs:
            source = _source(tensor)
            if source.op.name not in forward or source.op.type == "Const":
                continue
            if source.ref() in outside:
                positions.add(outside[source.ref()])
            elif source.ref() not in weights and not _is_made_of(source, weights):
                inside[source.ref()] = _bytes(source)
    return sum(inside.values()), tuple(sorted(positions))


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose memory this one shares."""
    while tensor.op.type in _ALIASES and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return tensor


def _is_made_of(tensor: tf.Tensor, weights: set[Any]) -> bool:
    """Whether it is a weight in another number format or turned: no activation of the microbatch."""
    while tensor.op.type in _TURNS:
        tensor = _source(tensor.op.inputs[0])
    return tensor.ref() in weights


def _bytes(tensor: Any) -> int:
    """Bytes of a tensor or spec; 0 if its size is not known."""
    shape = tensor.shape
    if shape.rank is None or not shape.is_fully_defined():
        return 0
    try:
        return math.prod(shape) * tensor.dtype.size
    except (TypeError, ValueError):  # a resource or variant has no size
        return 0


def _count(
    call: LayerCall,
    run: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
    state: Sequence[tf.TensorSpec],
    outputs: Sequence[tf.TensorSpec],
) -> tuple[int, str]:
    """The FLOPs of the forward pass, and where the number comes from."""
    if call.is_layer:
        shapes = [[tuple(spec.shape) for spec in side] for side in (specs, outputs)]
        if all(None not in shape for side in shapes for shape in side):
            flops = flops_by_formula(call.operation, *shapes)
            if flops is not None:
                return int(flops), "formula"
    graph = tf.function(run).get_concrete_function(list(specs), list(state)).graph
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation())
    with _no_advice():
        profile = profiler.profile(graph, options=options.with_empty_output().build())
    flops = int(profile.total_float_ops) if profile is not None else 0
    return flops, "graph" if flops else "none"


@contextlib.contextmanager
def _no_advice() -> Iterator[None]:
    """Silences TensorFlow's advice against its profiler of graphs, which has no successor."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _time(
    call: LayerCall,
    run: Callable[..., Any],
    whole: Callable[..., Any],
    specs: Sequence[tf.TensorSpec],
    device: str | None,
) -> tuple[float, float]:
    """Seconds of a forward pass and of a backward pass."""
    with tf.device(device):
        # Placed once, so that the times hold no transfer.
        inputs = [_example(spec) for spec in specs]
        values = [tf.identity(v.value) for v in call.variables]
        idle = tf.function(lambda inputs, values: [tf.identity(x) for x in inputs[:1]])
        overhead = _fastest(idle, inputs, values)
        forward = max(_fastest(tf.function(run), inputs, values) - overhead, 0.0)
        both = max(_fastest(whole, inputs, values) - overhead, 0.0)
    return forward, max(both - forward, 0.0)


def _fastest(function: Callable[..., Any], *arguments: Any) -> float:
    """The shortest of several runs: whatever else the machine does only adds to it."""
    _wait(function(*arguments))  # traces
    best, spent, rounds = math.inf, 0.0, 0
    while rounds < 3 or (spent < _SECONDS_PER_TIMING and rounds < _MOST_ROUNDS):
        begin = time.perf_counter()
        _wait(function(*arguments))
        seconds = time.perf_counter() - begin
        best, spent, rounds = min(best, seconds), spent + seconds, rounds + 1
    return best


def _wait(results: Any) -> None:
    """Waits for a device that works in the background."""
    for tensor in tf.nest.flatten(results)[:1]:
        tensor.numpy()


def _example(spec: tf.TensorSpec) -> tf.Tensor:
    if spec.dtype.is_floating:
        return tf.cast(tf.random.stateless_normal(spec.shape, [1, 2]), spec.dtype)
    return (
        tf.ones(spec.shape, spec.dtype) if spec.dtype.is_bool else tf.zeros(spec.shape, spec.dtype)
    )


def _default_device() -> str:
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
