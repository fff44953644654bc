"""Rows about what `fit`, `evaluate` and `predict` accept as data."""

from __future__ import annotations

from typing import Any

import numpy as np
from parity.compare import Cell
from parity.context import Context, arrays, build, fit, labels, mlp, state
from parity.lazy import keras, tf
from parity.registry import row


@row("numpy", "data", odd=True)
def numpy_arrays(ctx: Context) -> Any:
    return fit(mlp(ctx), *arrays())


@row("Dataset", "data", odd=True)
def dataset(ctx: Context) -> Any:
    return fit(mlp(ctx), tf.data.Dataset.from_tensor_slices(arrays()).batch(8))


@row("Dataset, mapped, cached and prefetched", "data")
def dataset_pipeline(ctx: Context) -> Any:
    source = tf.data.Dataset.from_tensor_slices(arrays(32)).cache()
    source = source.shuffle(32, seed=3, reshuffle_each_iteration=True)
    source = source.map(lambda x, y: (x * 2.0, y), num_parallel_calls=2).batch(8).prefetch(2)
    return fit(mlp(ctx), source)


@row("generator", "data")
def generator(ctx: Context) -> Any:
    x, y = arrays(48)

    def batches() -> Any:
        for i in range(0, 48, 8):
            yield x[i : i + 8], y[i : i + 8]

    return fit(mlp(ctx), batches(), steps_per_epoch=3)


@row("PyDataset", "data", odd=True)
def py_dataset(ctx: Context) -> Any:
    x, y = arrays(21)

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> Any:
            return x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]

    return fit(mlp(ctx), Batches())


def _two_headed() -> Any:
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    hidden = keras.layers.Dense(6, activation="tanh")(keras.layers.Concatenate()([a, b]))
    outputs = {
        "value": keras.layers.Dense(1, name="value")(hidden),
        "kind": keras.layers.Dense(3, activation="softmax", name="kind")(hidden),
    }
    return keras.Model({"a": a, "b": b}, outputs)


def _two_headed_data(rows: int) -> tuple[dict, dict]:
    x, value = arrays(rows)
    _, kind = labels(rows)
    return {"a": x, "b": x[:, :2] ** 2}, {"value": value, "kind": kind}


_TWO_LOSSES: dict[str, Any] = {
    "loss": {"value": "mse", "kind": "sparse_categorical_crossentropy"},
    "metrics": {"value": ["mae"], "kind": ["accuracy"]},
    "optimizer": "sgd",
}


@row("dict inputs, several outputs and losses", "data", odd=True)
def dict_inputs(ctx: Context) -> Any:
    model = build(ctx, _two_headed, **_TWO_LOSSES)
    return fit(model, *_two_headed_data(21))


@row("dict inputs, loss_weights and sample weights by output", "data")
def dict_weights(ctx: Context) -> Any:
    model = build(
        ctx,
        _two_headed,
        **_TWO_LOSSES,
        loss_weights={"value": 0.3, "kind": 2.0},
        weighted_metrics={"value": ["mse"], "kind": ["accuracy"]},
    )
    x, y = _two_headed_data(20)
    weights = {"value": np.linspace(0, 2, 20), "kind": np.linspace(3, 1, 20)}
    source = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(8)
    return fit(model, source)


@row("string inputs", "data")
def string_inputs(ctx: Context) -> Any:
    words = np.array([["red"], ["green"], ["blue"], ["other"]] * 5, dtype=object)
    y = np.arange(20, dtype="float32").reshape(20, 1) % 4

    def make() -> Any:
        return keras.Sequential(
            [
                keras.Input((1,), dtype="string"),
                keras.layers.StringLookup(vocabulary=["red", "green", "blue"]),
                keras.layers.Embedding(4, 3),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )

    model = build(ctx, make, optimizer="sgd", loss="mse")
    source = tf.data.Dataset.from_tensor_slices((tf.constant(words), y)).batch(8)
    result = fit(model, source)
    return result | {"predicted": model.predict(source.map(lambda x, y: x), verbose=0)}


@row("integer and boolean inputs", "data")
def integer_inputs(ctx: Context) -> Any:
    x, y = arrays(20)

    def make() -> Any:
        counts, flags = keras.Input((4,), dtype="int64"), keras.Input((4,), dtype="bool")
        as_floats = keras.layers.Lambda(lambda t: keras.ops.cast(t, "float32"))
        hidden = keras.layers.Concatenate()([as_floats(counts), as_floats(flags)])
        return keras.Model([counts, flags], keras.layers.Dense(1)(hidden))

    model = build(ctx, make, optimizer=lambda: keras.optimizers.SGD(0.01), loss="mse")
    source = tf.data.Dataset.from_tensor_slices((((x * 3).astype("int64"), x > 0), y)).batch(8)
    return fit(model, source)


@row("sample_weight", "data", odd=True)
def sample_weight(ctx: Context) -> Any:
    model = mlp(ctx, metrics=["mae"], weighted_metrics=["mse"])
    weights = np.linspace(0, 3, 21).astype("float32")
    return fit(model, *arrays(21), sample_weight=weights)


@row("sample_weight, in a Dataset", "data")
def sample_weight_dataset(ctx: Context) -> Any:
    x, y = arrays(20)
    weights = np.linspace(0, 3, 20).astype("float32")
    return fit(mlp(ctx), tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(8))


def _classifier(ctx: Context, **arguments: Any) -> Any:
    arguments = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]} | arguments
    return mlp(ctx, outputs=3, activation="softmax", **arguments)


@row("class_weight", "data", odd=True)
def class_weight(ctx: Context) -> Any:
    model = _classifier(ctx, weighted_metrics=["accuracy"])
    return fit(model, *labels(21), class_weight={0: 1.0, 1: 3.0, 2: 0.5})


@row("class_weight, with a Dataset", "data")
def class_weight_dataset(ctx: Context) -> Any:
    source = tf.data.Dataset.from_tensor_slices(labels(20)).batch(8)
    return fit(_classifier(ctx), source, class_weight={0: 1.0, 1: 3.0, 2: 0.5})


def _distributed(ctx: Context, source: Any) -> Any:
    if ctx.strategy is None:
        return source
    return ctx.strategy.experimental_distribute_dataset(source)


@row("DistributedDataset", "data")
def distributed_dataset(ctx: Context) -> Any:
    source = tf.data.Dataset.from_tensor_slices(arrays(32)).batch(8)
    return fit(mlp(ctx), _distributed(ctx, source), steps_per_epoch=4)


@row("class_weight, with a DistributedDataset", "data")
def class_weight_distributed(ctx: Context) -> Any:
    source = tf.data.Dataset.from_tensor_slices(labels(32)).batch(8)
    weights = {0: 1.0, 1: 3.0, 2: 0.5}
    return fit(_classifier(ctx), _distributed(ctx, source), steps_per_epoch=4, class_weight=weights)


@row("validation_data", "data", odd=True)
def validation_data(ctx: Context) -> Any:
    model = mlp(ctx, metrics=["mae"])
    return fit(model, *arrays(24), validation_data=arrays(21, seed=1))


@row("validation_data, weighted, every other epoch", "data")
def validation_weighted(ctx: Context) -> Any:
    validation = (*arrays(13, seed=1), np.linspace(0, 2, 13).astype("float32"))
    return fit(
        mlp(ctx, weighted_metrics=["mae"]),
        *arrays(24),
        validation_data=validation,
        validation_batch_size=4,
        validation_freq=2,
        epochs=4,
    )


@row("validation_data, a Dataset with validation_steps", "data")
def validation_dataset(ctx: Context) -> Any:
    validation = tf.data.Dataset.from_tensor_slices(arrays(24, seed=1)).batch(8)
    return fit(mlp(ctx), *arrays(24), validation_data=validation, validation_steps=2)


@row("validation_split", "data", odd=True)
def validation_split(ctx: Context) -> Any:
    return fit(mlp(ctx), *arrays(28), validation_split=0.3)


@row("uneven last batch", "data", odd=True)
def uneven_last(ctx: Context) -> Any:
    """The last batch has 7 rows: two replicas get 4 and 3, and must not count the same."""
    return fit(mlp(ctx, metrics=["mae"]), *arrays(23), epochs=3)


@row("uneven last batch, in a Dataset", "data")
def uneven_last_dataset(ctx: Context) -> Any:
    source = tf.data.Dataset.from_tensor_slices(arrays(23)).batch(8)
    return fit(mlp(ctx), source, epochs=3)


@row("last batch smaller than the number of replicas", "data", odd=True)
def last_batch_of_one(ctx: Context) -> Any:
    """All but one replica get no rows at all in the last batch."""
    return fit(mlp(ctx, metrics=["mae"]), *arrays(17), validation_data=arrays(9, seed=1))


@row("first batch that does not divide by the replicas", "data", odd=True)
def first_batch_uneven(ctx: Context) -> Any:
    x, y = arrays(15)
    model = mlp(ctx)
    result = fit(model, x, y, batch_size=5, epochs=1)
    return result | {"evaluated": model.evaluate(x[:1], y[:1], verbose=0)}


@row("a global batch smaller than the number of replicas", "data", odd=True)
def tiny_batches(ctx: Context) -> Any:
    return fit(mlp(ctx), *arrays(4), batch_size=1)


def _eight_steps(cell: Cell) -> None:
    for result in cell.results:
        assert result["own_steps"] == 8, result["own_steps"]


@row(
    "batches of different sizes, their number unknown",
    "data",
    check=_eight_steps,
)
def ragged_batches(ctx: Context) -> Any:
    """Stock Keras counts a step too many when it finds the end of such a dataset, without training."""
    x, y = arrays(20)
    sizes = [(0, 8), (8, 11), (11, 18), (18, 20)]

    def batches() -> Any:
        for begin, stop in sizes:
            yield x[begin:stop], y[begin:stop]

    signature = (
        tf.TensorSpec((None, 4), "float32"),
        tf.TensorSpec((None, 1), "float32"),
    )
    source = tf.data.Dataset.from_generator(batches, output_signature=signature)
    result = fit(mlp(ctx), source)
    optimizer = result.pop("optimizer")
    return result | {"own_steps": int(optimizer["0/iteration"])}


@row("steps_per_epoch on an infinite dataset", "data")
def infinite(ctx: Context) -> Any:
    source = tf.data.Dataset.from_tensor_slices(arrays(20)).repeat().batch(8)
    return fit(mlp(ctx), source, steps_per_epoch=3, epochs=3)


@row("steps_per_epoch less than the data", "data")
def short_epochs(ctx: Context) -> Any:
    return fit(mlp(ctx), *arrays(32), steps_per_epoch=2, epochs=2)


@row("initial_epoch", "data")
def initial_epoch(ctx: Context) -> Any:
    return fit(mlp(ctx), *arrays(), initial_epoch=1, epochs=3)


@row("fit called twice", "data")
def fit_twice(ctx: Context) -> Any:
    model = mlp(ctx)
    first = fit(model, *arrays(), epochs=1)["history"]
    return fit(model, *arrays(), epochs=1) | {"first": first}


@row("shuffle=True", "data")
def shuffled(ctx: Context) -> Any:
    return fit(mlp(ctx), *arrays(), shuffle=True)


@row("evaluate", "data", odd=True)
def evaluate(ctx: Context) -> Any:
    model = mlp(ctx, metrics=["mae", "mse"], weighted_metrics=["mae"])
    x, y = arrays(19)
    source = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    return {
        "arrays": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True),
        "list": model.evaluate(x, y, batch_size=8, verbose=0),
        "weighted": model.evaluate(x, y, sample_weight=y[:, 0] ** 2, batch_size=8, verbose=0),
        "dataset": model.evaluate(source, verbose=0, return_dict=True),
        "steps": model.evaluate(source, steps=2, verbose=0, return_dict=True),
    } | state(model)


@row("predict", "data", odd=True)
def predict(ctx: Context) -> Any:
    model = mlp(ctx)
    x, _ = arrays(19)
    source = tf.data.Dataset.from_tensor_slices(x).batch(4)
    return {
        "arrays": model.predict(x, batch_size=8, verbose=0),
        "one row": model.predict(x[:1], verbose=0),
        "dataset": model.predict(source, verbose=0),
        "steps": model.predict(source, steps=2, verbose=0),
    }


@row("predict, in input order", "data", odd=True)
def predict_order(ctx: Context) -> Any:
    def make() -> Any:
        return keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )

    model = build(ctx, make, optimizer="sgd", loss="mse")
    rows = np.arange(29, dtype="float32")[:, None]
    predicted = {str(b): model.predict(rows, batch_size=b, verbose=0) for b in (4, 5, 32)}
    in_order = all(bool((p == rows).all()) for p in predicted.values())
    return {"in order": in_order} | predicted


@row("predict, several inputs and dict outputs", "data", odd=True)
def predict_dict(ctx: Context) -> Any:
    model = build(ctx, _two_headed, **_TWO_LOSSES)
    x, _ = _two_headed_data(11)
    return {
        "arrays": model.predict(x, batch_size=4, verbose=0),
        "on batch": model.predict_on_batch({k: v[:5] for k, v in x.items()}),
    }


@row("predict, sequences of different lengths", "data")
def predict_lengths(ctx: Context) -> Any:
    def make() -> Any:
        inputs = keras.Input((None, 2))
        return keras.Model(inputs, keras.layers.Dense(3)(inputs))

    model = build(ctx, make, optimizer="sgd", loss="mse")
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(4, n, 2)).astype("float32") for n in (3, 5, 3)]
    source = tf.data.Dataset.from_generator(
        lambda: iter(parts), output_signature=tf.TensorSpec((None, None, 2), "float32")
    )
    predicted = model.predict(source, verbose=0)
    return {"rows": [row.numpy() for row in predicted]}


@row("train_on_batch, test_on_batch, predict_on_batch", "data", odd=True)
def on_batch(ctx: Context) -> Any:
    model = mlp(ctx, metrics=["mae"])
    x, y = arrays(16)
    logs = [
        model.train_on_batch(x, y, return_dict=True),
        model.train_on_batch(x[:7], y[:7], sample_weight=np.arange(7.0), return_dict=True),
        model.test_on_batch(x[:7], y[:7], return_dict=True),
        model.train_on_batch(x[:1], y[:1], return_dict=True),
    ]
    result = {"logs": logs, "all rows": model.predict_on_batch(x)}
    return result | {"five rows": model.predict_on_batch(x[:5])} | state(model)


@row("train_on_batch with class_weight", "data")
def on_batch_class_weight(ctx: Context) -> Any:
    model = _classifier(ctx)
    x, y = labels(16)
    logs = model.train_on_batch(x, y, class_weight={0: 1.0, 1: 3.0, 2: 0.5}, return_dict=True)
    return {"logs": logs} | state(model)


@row("per-batch logs seen by callbacks", "data", odd=True)
def batch_logs(ctx: Context) -> Any:
    seen: dict[str, list] = {"train": [], "test": [], "predict": []}
    callback = keras.callbacks.LambdaCallback()
    callback.on_train_batch_end = lambda batch, logs: seen["train"].append((batch, dict(logs)))
    callback.on_test_batch_end = lambda batch, logs: seen["test"].append((batch, dict(logs)))
    callback.on_predict_batch_end = lambda batch, logs: seen["predict"].append(
        (batch, np.asarray(logs["outputs"]))
    )
    model = mlp(ctx, metrics=["mae"])
    x, y = arrays(23)
    fit(model, x, y, validation_data=arrays(9, seed=1), callbacks=[callback])
    model.predict(x, batch_size=8, verbose=0, callbacks=[callback])
    return {kind: [[b, _plain(v)] for b, v in entries] for kind, entries in seen.items()}


def _plain(logs: Any) -> Any:
    return {k: float(v) for k, v in logs.items()} if isinstance(logs, dict) else logs
