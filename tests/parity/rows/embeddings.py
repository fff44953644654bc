"""Rows about tables in shards: equal to keras.layers.Embedding, which is what the reference trains."""

from __future__ import annotations

from typing import Any

import numpy as np
from parity.context import Context, arrays, build, fit
from parity.lazy import keras
from parity.registry import row


def _model(ctx: Context, optimizer: Any) -> Any:
    def make() -> Any:
        if ctx.strategy is None:
            table = keras.layers.Embedding(40, 4)
        else:
            from tfdist.layers import ShardedEmbedding

            table = ShardedEmbedding(40, 4, shards=3)
        return keras.Sequential(
            [keras.Input((3,), dtype="int32"), table, keras.layers.Flatten(), keras.layers.Dense(1)]
        )

    return build(ctx, make, optimizer=optimizer, loss="mse")


def _train(ctx: Context, optimizer: Any, rows: int) -> dict[str, Any]:
    """Returns the history, and weights and optimizer state with the table in one piece."""
    x = np.random.default_rng(0).integers(0, 30, size=(rows, 3)).astype("int32")
    model = _model(ctx, optimizer)
    history = fit(model, x, arrays(rows)[1])["history"]
    store: dict[str, Any] = {}
    model.optimizer.save_own_variables(store)
    return {
        "history": history,
        "weights": {
            f"{layer}/{i}": value
            for layer, each in enumerate(model.layers)
            for i, value in enumerate(each.get_weights())
        },
        "optimizer": {key: np.asarray(value) for key, value in store.items()},
    }


@row("ShardedEmbedding, sparse gradients", "layers", odd=True)
def sharded(ctx: Context) -> Any:
    """Three shards; some rows get gradients from every replica, some from one, some from none."""
    return _train(ctx, lambda: keras.optimizers.Adagrad(0.05), 23)


@row("ShardedEmbedding, clipped and accumulated", "layers")
def sharded_clipped(ctx: Context) -> Any:
    optimizer = lambda: keras.optimizers.SGD(  # noqa: E731
        0.1, global_clipnorm=0.3, gradient_accumulation_steps=2, momentum=0.5
    )
    return _train(ctx, optimizer, 24)
