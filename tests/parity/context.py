"""What a row is given: its column's strategy, a folder, and helpers to build and report."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from parity.lazy import keras

__all__ = ["Context", "arrays", "build", "fit", "labels", "mlp", "resolve", "state"]


@dataclass(frozen=True)
class Context:
    """Where a row runs.

    Attributes:
        column: The column's name; "reference" is stock Keras on one device.
        strategy: The column's strategy; None for the reference.
        folder: A fresh folder, one path for all ranks of the cell.
        shared: A folder that all columns of one test run share, for what one saves and another loads.
        rank: This process's rank in its column.
    """

    column: str
    strategy: Any
    folder: Path
    shared: Path
    rank: int = 0

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the strategy's scope, or one that does nothing for the reference."""
        return self.strategy.scope() if self.strategy is not None else contextlib.nullcontext()

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    @property
    def replicas(self) -> int:
        """The number of replicas in all processes together."""
        return self.strategy.num_replicas_in_sync if self.strategy is not None else 1

    def path(self, name: str) -> str:
        """Returns a path in the cell's folder, the same on every rank."""
        return str(self.folder / name)


def arrays(rows: int = 24, features: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns a small regression problem: x [rows, features], y [rows, 1]."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype("float32")
    return x, (x.sum(1, keepdims=True) + 0.1 * rng.normal(size=(rows, 1))).astype("float32")


def labels(rows: int = 24, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns a small classification problem: x [rows, 4], class numbers [rows]."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype("float32")
    scores = x @ rng.normal(size=(4, classes)) + 0.3 * rng.normal(size=(rows, classes))
    return x, scores.argmax(1).astype("int32")


def resolve(value: Any) -> Any:
    """Calls functions without arguments: objects that own variables must be made inside the scope."""
    is_factory = callable(value) and getattr(value, "__name__", "") == "<lambda>"
    if is_factory and value.__code__.co_argcount == 0:
        return value()
    return value


def build(ctx: Context, make: Any, **compile_arguments: Any) -> Any:
    """Calls `make()` and compiles the model it returns, all inside the scope."""
    with ctx.scope():
        model = make()
        model.compile(**{name: resolve(value) for name, value in compile_arguments.items()})
    return model


def mlp(
    ctx: Context,
    *,
    outputs: int = 1,
    activation: str | None = None,
    optimizer: Any = lambda: keras.optimizers.SGD(0.05),
    loss: Any = "mse",
    **compile_arguments: Any,
) -> Any:
    """Returns the usual small model, compiled in the column's scope."""

    def make() -> Any:
        return keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dense(outputs, activation=activation),
            ]
        )

    return build(ctx, make, optimizer=optimizer, loss=loss, **compile_arguments)


def state(model: Any) -> dict[str, Any]:
    """Returns the model's weights and its optimizer's variables, in order, by name.

    Not by path: Keras builds an optimizer inside or outside of its name scope, depending on who asks.
    """
    optimizer = getattr(model, "optimizer", None)
    return {
        "weights": _numbered(model.weights),
        "optimizer": _numbered(optimizer.variables) if optimizer is not None else {},
    }


def _numbered(variables: Any) -> dict[str, np.ndarray]:
    return {
        f"{i}/{v.name}": np.asarray(keras.ops.convert_to_numpy(v)) for i, v in enumerate(variables)
    }


def fit(model: Any, *data: Any, extra: Mapping[str, Any] | None = None, **arguments: Any) -> dict:
    """Trains two epochs of batches of 8 in order, unless told otherwise, and returns what a row returns."""
    arguments = {"epochs": 2, "verbose": 0, "shuffle": False} | arguments
    if data and isinstance(data[0], np.ndarray | dict):
        arguments.setdefault("batch_size", 8)
    history = model.fit(*data, **arguments)
    return {"history": history.history} | state(model) | dict(extra or {})
