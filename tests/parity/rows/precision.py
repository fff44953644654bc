"""Rows about number formats."""

from __future__ import annotations

from typing import Any

import numpy as np
from parity.context import Context, arrays, build, fit
from parity.lazy import keras
from parity.registry import row

_FLOAT16 = "float16 keeps 11 bits: gradients of another summation order differ in the last ones"
_BFLOAT16 = "bfloat16 keeps 8 bits: gradients of another summation order differ in the last ones"


def _small() -> Any:
    """Returns data whose gradients, times the first loss scale, stay far below float16's largest."""
    x, y = arrays(32)
    return x[:23], 0.1 * y[:23]


def _model(ctx: Context, policy: str, optimizer: Any) -> Any:
    keras.mixed_precision.set_dtype_policy(policy)

    def make() -> Any:
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dense(1, dtype="float32"),
            ]
        )

    return build(ctx, make, optimizer=optimizer, loss="mse", metrics=["mae"])


@row("mixed_float16", "precision", rtol=5e-3, atol=2e-3, loose=_FLOAT16, odd=True)
def mixed_float16(ctx: Context) -> Any:
    model = _model(ctx, "mixed_float16", lambda: keras.optimizers.SGD(0.05))
    result = fit(model, *_small())
    return result | {"scale": float(model.optimizer.dynamic_scale)}


@row(
    "mixed_float16, a step skipped for overflow", "precision", rtol=5e-3, atol=2e-3, loose=_FLOAT16
)
def mixed_float16_overflow(ctx: Context) -> Any:
    """The second batch overflows float16 in one replica's rows only: every replica skips the step."""
    x, y = arrays(32)
    x[9] = 6e4
    y[9] = 1e6
    optimizer = lambda: keras.optimizers.LossScaleOptimizer(  # noqa: E731
        keras.optimizers.Adam(0.01), initial_scale=4096.0, dynamic_growth_steps=3
    )
    model = _model(ctx, "mixed_float16", optimizer)
    result = fit(model, x, y, epochs=1)
    inner = int(model.optimizer.inner_optimizer.iterations)
    return result | {"scale": float(model.optimizer.dynamic_scale), "steps": inner}


@row("mixed_float16 with clipping", "precision", rtol=5e-3, atol=2e-3, loose=_FLOAT16)
def mixed_float16_clipped(ctx: Context) -> Any:
    model = _model(
        ctx, "mixed_float16", lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1, momentum=0.5)
    )
    return fit(model, *_small())


@row("mixed_float16 with gradient accumulation", "precision", rtol=5e-3, atol=2e-3, loose=_FLOAT16)
def mixed_float16_accumulated(ctx: Context) -> Any:
    model = _model(
        ctx, "mixed_float16", lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2)
    )
    return fit(model, *_small(), epochs=4)


@row("mixed_bfloat16", "precision", rtol=3e-2, atol=1e-2, loose=_BFLOAT16, odd=True)
def mixed_bfloat16(ctx: Context) -> Any:
    return fit(_model(ctx, "mixed_bfloat16", lambda: keras.optimizers.SGD(0.05)), *arrays(23))


@row("float64", "precision", rtol=1e-7, atol=1e-9)
def float64(ctx: Context) -> Any:
    keras.mixed_precision.set_dtype_policy("float64")

    def make() -> Any:
        layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((4,), dtype="float64"), *layers])

    x, y = (a.astype(np.float64) for a in arrays(24))
    model = build(ctx, make, optimizer=lambda: keras.optimizers.SGD(0.05), loss="mse")
    return fit(model, x, y)
