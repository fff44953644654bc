"""Floating-point operations of a layer's forward pass, by formula; None where there is no formula.

A multiplication and an addition count as two. Activations, dropout and other work that grows only
with the number of elements is left out of the formulas, as is usual; biases are in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["flops_by_formula"]

Shape = Sequence[int]


def flops_by_formula(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int | None:
    """Counts the operations of one call.

    Args:
        layer: a built Keras layer.
        inputs: shapes of the tensors that it takes, with the batch.
        outputs: shapes of the tensors that it makes.

    Returns:
        The number of operations; None if the class is not known.
    """
    kind = type(layer)  # not those that derive from it: their `call` may do anything
    formula = _FORMULAS.get(kind.__name__)
    if formula is None or kind.__module__.partition(".")[0] != "keras":
        return None
    return formula(layer, inputs, outputs)


def _dense(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    size = math.prod(outputs[0])
    return 2 * size * inputs[0][-1] + (size if layer.bias is not None else 0)


def _einsum_dense(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Every letter of the equation is a loop."""
    left, _, result = layer.equation.replace(" ", "").partition("->")
    first, _, kernel = left.partition(",")
    sizes = dict(zip(kernel, layer.kernel.shape))
    if "." in first:  # the axes that an ellipsis stands for are those of the output
        contracted = math.prod(n for letter, n in sizes.items() if letter not in result)
        multiplied = math.prod(outputs[0]) * contracted
    else:
        multiplied = math.prod((dict(zip(first, inputs[0])) | sizes).values())
    return 2 * multiplied + (math.prod(outputs[0]) if layer.bias is not None else 0)


def _convolution(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Each element of the output is a sum over the kernel's window and the group's channels."""
    channels = inputs[0][-1 if layer.data_format == "channels_last" else 1]
    window = math.prod(layer.kernel_size) * channels // layer.groups
    size = math.prod(outputs[0])
    return 2 * size * window + (size if layer.use_bias else 0)


def _depthwise(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    size = math.prod(outputs[0])
    return 2 * size * math.prod(layer.kernel_size) + (size if layer.use_bias else 0)


def _transposed(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Each element of the input is spread over the kernel's window."""
    filters = outputs[0][-1 if layer.data_format == "channels_last" else 1]
    multiplied = math.prod(inputs[0]) * math.prod(layer.kernel_size) * filters
    return 2 * multiplied + (math.prod(outputs[0]) if layer.use_bias else 0)


def _embedding(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """A look-up computes nothing; the reverse projection is a product with the whole table."""
    width, words = int(layer.output_dim), int(layer.input_dim)
    reverse = len(inputs[0]) == len(outputs[0]) and outputs[0][-1] == words
    return 2 * math.prod(outputs[0]) * width if reverse else 0


def _attention(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Four projections, the scores of all pairs, and the sums of the values by them."""
    query, value = inputs[0], inputs[1] if len(inputs) > 1 else inputs[0]
    key = inputs[2] if len(inputs) > 2 else value
    batch = query[0]
    t, s = math.prod(query[1:-1]), math.prod(value[1:-1])
    heads, width, value_width = layer.num_heads, layer.key_dim, layer.value_dim
    projections = (
        t * query[-1] * heads * width
        + s * key[-1] * heads * width
        + s * value[-1] * heads * value_width
        + t * heads * value_width * outputs[0][-1]
    )
    pairs = t * s * heads * (width + value_width)
    return 2 * batch * (projections + pairs)


def _recurrent(gates: int) -> Callable[..., int]:
    def count(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        batch, steps, width = inputs[0]
        return 2 * batch * steps * gates * layer.units * (width + layer.units)

    return count


_FORMULAS: dict[str, Callable[..., int]] = {
    "Dense": _dense,
    "EinsumDense": _einsum_dense,
    "Conv1D": _convolution,
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "DepthwiseConv1D": _depthwise,
    "DepthwiseConv2D": _depthwise,
    "Conv1DTranspose": _transposed,
    "Conv2DTranspose": _transposed,
    "Conv3DTranspose": _transposed,
    "Embedding": _embedding,
    "ReversibleEmbedding": _embedding,
    "MultiHeadAttention": _attention,
    "SimpleRNN": _recurrent(1),
    "GRU": _recurrent(3),
    "LSTM": _recurrent(4),
}
