"""Cases about NanGuard, run in one process with three replicas; see `support.server`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.callbacks import NanGuard


def nan_after(value: Any) -> Any:
    """A function whose value is finite at 0, and whose derivative is not."""
    return tf.sqrt(value * 0.0)


LAYERS: dict[str, Callable[[], list[Any]]] = {
    "clean": list,
    "loss": lambda: [keras.layers.Lambda(lambda value: tf.math.log(value - 2.0))],
    "gradient": lambda: [keras.layers.Dense(3, activation=nan_after)],
    "infinity": lambda: [keras.layers.Lambda(lambda value: value * 1e25)],
}


def find(
    strategy: Any,
    layers: str = "clean",
    bad: str = "",
    row: int = 0,
    rows: int = 24,
    optimizer: str = "sgd",
    run_eagerly: bool = False,
) -> dict[str, Any]:
    """Fits with a guard, then without; returns what each raised."""
    data = {"x": np.ones((rows, 4), "float32"), "y": np.ones((rows, 1), "float32")}
    data["sample_weight"] = np.ones((rows,), "float32")
    if bad:
        data[bad][row] = np.nan
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), *LAYERS[layers](), keras.layers.Dense(1)])
        model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=run_eagerly)
    own = model.train_step.__func__

    def error(*callbacks: Any) -> str:
        try:
            model.fit(**data, batch_size=12, shuffle=False, verbose=0, callbacks=list(callbacks))
        except Exception as raised:
            return f"{type(raised).__name__}: {raised}"
        return "no error"

    return {
        "guarded": error(NanGuard()),
        "unguarded": error(),
        "restored": getattr(model.train_step, "__func__", None) is own,
    }
