"""Rows about layers whose training touches more than one gradient per weight."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from parity.compare import Cell, assert_finite, assert_ranks_agree
from parity.context import Context, arrays, build, fit, labels, state
from parity.lazy import keras, tf
from parity.registry import NO_SUM_WITHIN, Differs, Refused, row


def _with(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])


@row("BatchNormalization(synchronized=True)", "layers", odd=True, refused=NO_SUM_WITHIN)
def synchronized(ctx: Context) -> Any:
    make = lambda: _with(  # noqa: E731
        keras.layers.Dense(6), keras.layers.BatchNormalization(synchronized=True, momentum=0.9)
    )
    model = build(ctx, make, optimizer="sgd", loss="mse")
    return fit(model, *arrays(24), validation_data=arrays(16, seed=1))


@row(
    "BatchNormalization(synchronized=True), uneven last batch",
    "layers",
    odd=True,
    refused=NO_SUM_WITHIN,
)
def synchronized_uneven(ctx: Context) -> Any:
    make = lambda: _with(  # noqa: E731
        keras.layers.Dense(6), keras.layers.BatchNormalization(synchronized=True, momentum=0.9)
    )
    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(21))


@row(
    "BatchNormalization(synchronized=True), a replica without rows",
    "layers",
    refused=NO_SUM_WITHIN,
)
def synchronized_empty(ctx: Context) -> Any:
    make = lambda: _with(keras.layers.BatchNormalization(synchronized=True))  # noqa: E731
    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(9))


def _finite_everywhere(cell: Cell) -> None:
    assert_finite(cell)
    assert_ranks_agree(cell)


_OWN_STATISTICS = Differs(
    "Each replica normalises with the statistics of its own rows, as tf.distribute documents; "
    "never NaN, and from `evaluate`, `predict` or `save` on equal on all workers. "
    "`sync_batch_norm=True` makes it equal to one device.",
    check=_finite_everywhere,
)


@row("BatchNormalization, not synchronized", "layers", odd=True, differs=_OWN_STATISTICS)
def batch_norm(ctx: Context) -> Any:
    make = lambda: _with(keras.layers.Dense(6), keras.layers.BatchNormalization())  # noqa: E731
    model = build(ctx, make, optimizer="sgd", loss="mse")
    return fit(model, *arrays(24), validation_data=arrays(16, seed=1))


@row("BatchNormalization, not synchronized, a replica without rows", "layers", odd=True,
     differs=_OWN_STATISTICS)  # fmt: skip
def batch_norm_empty(ctx: Context) -> Any:
    make = lambda: _with(keras.layers.BatchNormalization())  # noqa: E731
    model = build(ctx, make, optimizer="sgd", loss="mse")
    result = fit(model, *arrays(9))
    predicted = model.predict(arrays(9)[0], verbose=0)
    return result | {"predicted": predicted} | state(model)


@row("BatchNormalization under sync_batch_norm", "layers", refused=NO_SUM_WITHIN)
def sync_batch_norm(ctx: Context) -> Any:
    """The strategy's own switch makes plain layers synchronized."""
    marker = getattr(ctx.strategy, "tfdist", None)
    if marker is not None:
        marker.sync_batch_norm = True
    try:
        make = lambda: _with(keras.layers.BatchNormalization())  # noqa: E731
        return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(21))
    finally:
        if marker is not None:
            marker.sync_batch_norm = False


def _masks_differ(cell: Cell) -> None:
    _finite_everywhere(cell)
    for result in cell.results:
        assert result["repeated"], "the same seed gave another run"
        assert result["own_masks_differ"], "two replicas drew the same mask"


_MASKS = Differs(
    "Each replica draws its own mask: the same seed gives the same run again, "
    "but not the masks of one device.",
    check=_masks_differ,
)


def _probe(ctx: Context) -> bool:
    """Whether the replicas of this process draw different masks for the same input."""
    if ctx.strategy is None:
        return True
    keras.utils.set_random_seed(3)
    with ctx.scope():
        dropout = keras.layers.Dropout(0.5, seed=5)
        dropout.build((None, 64))

    @tf.function
    def masks() -> Any:
        return ctx.strategy.run(lambda: dropout(tf.ones((1, 64)), training=True))

    local = [v.numpy() for v in ctx.strategy.experimental_local_results(masks())]
    return all((a != b).any() for i, a in enumerate(local) for b in local[:i])


@row("Dropout", "layers", odd=True, differs=_MASKS)
def dropout(ctx: Context) -> Any:
    def once() -> Any:
        keras.utils.clear_session()
        keras.utils.set_random_seed(11)
        make = lambda: _with(  # noqa: E731
            keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.5)
        )
        model = build(ctx, make, optimizer="sgd", loss="mse")
        return fit(model, *arrays(24), validation_data=arrays(8, seed=1))

    first, second = once(), once()
    same = first["history"] == second["history"] and all(
        (a == b).all() for a, b in zip(first["weights"].values(), second["weights"].values())
    )
    return first | {"repeated": bool(same), "own_masks_differ": _probe(ctx)}


@row("GaussianNoise and RandomFlip", "layers", differs=Differs(
    "Each replica draws its own noise; equal on all workers, never NaN.", _finite_everywhere
))  # fmt: skip
def noise(ctx: Context) -> Any:
    def make() -> Any:
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((4, 4, 1)),
                layers.RandomFlip("horizontal", seed=1),
                layers.GaussianNoise(0.1, seed=2),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    x = np.random.default_rng(0).normal(size=(16, 4, 4, 1)).astype("float32")
    return fit(build(ctx, make, optimizer="sgd", loss="mse"), x, x.mean((1, 2)))


@row("Embedding, sparse gradients", "layers", odd=True)
def embedding(ctx: Context) -> Any:
    """Some rows of the table get gradients from every replica, some from one, some from none."""

    def make() -> Any:
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(40, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )

    x = np.random.default_rng(0).integers(0, 30, size=(23, 3)).astype("int32")
    model = build(ctx, make, optimizer=lambda: keras.optimizers.Adam(0.01), loss="mse")
    return fit(model, x, arrays(23)[1])


@row("Embedding, sparse gradients, clipped and accumulated", "layers")
def embedding_clipped(ctx: Context) -> Any:
    def make() -> Any:
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(40, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )

    x = np.random.default_rng(0).integers(0, 30, size=(24, 3)).astype("int32")
    optimizer = lambda: keras.optimizers.SGD(  # noqa: E731
        0.1, global_clipnorm=0.3, gradient_accumulation_steps=2, momentum=0.5
    )
    return fit(build(ctx, make, optimizer=optimizer, loss="mse"), x, arrays(24)[1])


@row("RNN (LSTM and GRU, both directions)", "layers")
def rnn(ctx: Context) -> Any:
    def make() -> Any:
        return keras.Sequential(
            [
                keras.Input((5, 4)),
                keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True)),
                keras.layers.GRU(3),
                keras.layers.Dense(1),
            ]
        )

    x = np.random.default_rng(0).normal(size=(21, 5, 4)).astype("float32")
    return fit(build(ctx, make, optimizer="adam", loss="mse"), x, x.mean((1, 2))[:, None])


@row("RNN over masked sequences", "layers")
def rnn_masked(ctx: Context) -> Any:
    def make() -> Any:
        return keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                keras.layers.Embedding(12, 3, mask_zero=True),
                keras.layers.GRU(4),
                keras.layers.Dense(1),
            ]
        )

    rng = np.random.default_rng(0)
    x = rng.integers(1, 12, size=(21, 6)).astype("int32")
    for i in range(21):
        x[i, 1 + i % 6 :] = 0
    return fit(build(ctx, make, optimizer="adam", loss="mse"), x, arrays(21)[1])


@row("convolutional network", "layers", odd=True)
def conv_net(ctx: Context) -> Any:
    def make() -> Any:
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((6, 6, 1)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.DepthwiseConv2D(2),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )

    x = np.random.default_rng(0).normal(size=(21, 6, 6, 1)).astype("float32")
    loss = lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # noqa: E731
    model = build(ctx, make, optimizer="sgd", loss=loss, metrics=["accuracy"])
    return fit(model, x, labels(21)[1])


@row("attention and layer normalisation", "layers")
def attention(ctx: Context) -> Any:
    def make() -> Any:
        layers = keras.layers
        inputs = keras.Input((5, 4))
        hidden = layers.MultiHeadAttention(2, 3)(inputs, inputs)
        hidden = layers.LayerNormalization()(inputs + hidden)
        return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden)))

    x = np.random.default_rng(0).normal(size=(20, 5, 4)).astype("float32")
    model = build(
        ctx, make, optimizer=lambda: keras.optimizers.Adam(0.01, epsilon=1e-3), loss="mse"
    )
    return fit(model, x, x.mean((1, 2))[:, None])


@row("Normalization, adapted", "layers")
def normalization(ctx: Context) -> Any:
    x, y = arrays(24)

    def make() -> Any:
        layer = keras.layers.Normalization()
        layer.adapt(x * 3 + 1)
        return _with(layer)

    return fit(build(ctx, make, optimizer="sgd", loss="mse"), x * 3 + 1, y)


@row(
    "SpectralNormalization",
    "layers",
    refused=Refused(
        "The workers of a synchronous step share the weights: a layer that assigns to them in its "
        "forward pass is refused.",
        "no layer may assign to its trainable variables",
    ),
)
def spectral(ctx: Context) -> Any:
    """A wrapper that assigns to its own variables in every step."""
    make = lambda: _with(keras.layers.SpectralNormalization(keras.layers.Dense(4)))  # noqa: E731
    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(24))


@row("a layer that counts its calls", "layers")
def counter(ctx: Context) -> Any:
    def make() -> Any:
        class Counter(keras.layers.Layer):
            def build(self, _: Any) -> None:
                self.count = self.add_weight(
                    shape=(), initializer="zeros", trainable=False, name="count"
                )

            def call(self, x: Any, training: bool = False) -> Any:
                if training:
                    self.count.assign_add(1.0)
                return x

        return _with(Counter())

    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(24))


@row("variables that take the replicas' mean and sum", "layers", odd=True)
def aggregated(ctx: Context) -> Any:
    """`add_weight(aggregation=...)`: a running mean, and a count of rows; an uneven last batch."""

    def make() -> Any:
        class Statistics(keras.layers.Layer):
            def build(self, _: Any) -> None:
                add = functools.partial(self.add_weight, shape=(), trainable=False)
                self.center = add(initializer="zeros", aggregation="mean", name="center")
                self.rows = add(initializer="ones", aggregation="sum", name="rows")
                self.left = add(initializer="ones", aggregation="sum", name="left")

            def call(self, x: Any, training: bool = False) -> Any:
                if training:
                    rows = tf.cast(tf.shape(x)[0], tf.float32)
                    self.center.assign(0.9 * self.center + 0.1 * tf.reduce_mean(x))
                    self.rows.assign_add(rows)
                    self.left.assign_sub(rows)
                return x

        return _with(Statistics())

    return fit(build(ctx, make, optimizer="sgd", loss="mse"), *arrays(21))
