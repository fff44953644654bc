"""The bodies of CASES in `test_cases_keras.py`: each runs on every process of a column.

`lab` is what the parity matrix's processes hold: the strategies of their columns, and their rank.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from parity.columns import Lab, reset
from parity.context import Context, arrays, build, fit, mlp, state

from tfdist.errors import TfdistError


def context(lab: Lab, column: str, folder: str = ".") -> Context:
    """Returns a clean process's context for a case."""
    reset()
    return Context(column, lab.strategies[column], Path(folder), Path(folder), lab.rank)


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """Yields the list of what the block logs at WARNING or above."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Keep(logging.WARNING)
    loggers = [logging.getLogger("tfdist"), tf.get_logger()]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield messages
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def refusal(call: Any) -> dict[str, str]:
    """Returns the kind and text of the error that a call must raise before any collective fails."""
    try:
        call()
    except tf.errors.OpError:
        raise  # the workers are broken now, and must be started afresh
    except Exception as error:
        return {"kind": type(error).__name__, "text": str(error),
                "ours": str(isinstance(error, TfdistError))}  # fmt: skip
    return {"kind": "none", "text": "", "ours": "False"}


def _policy(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    options = tf.data.Options()
    policy = getattr(tf.data.experimental.AutoShardPolicy, name)
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def _linear(ctx: Context, **compile_arguments: Any) -> Any:
    make = lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])  # noqa: E731
    return build(ctx, make, **({"optimizer": "sgd", "loss": "mse"} | compile_arguments))


def double_batch(lab: Lab, column: str) -> dict[str, Any]:
    ctx = context(lab, column)
    model = _linear(ctx)
    source = tf.data.Dataset.from_tensor_slices(arrays(64)).batch(8).batch(8)
    refused = refusal(lambda: model.fit(source, verbose=0))
    return refused | {"afterwards": fit(_linear(ctx), *arrays())["history"]["loss"]}


def many_steps_per_execution(lab: Lab, column: str) -> Any:
    ctx = context(lab, column)
    source = tf.data.Dataset.from_tensor_slices(arrays(320)).batch(8)
    return fit(_linear(ctx, steps_per_execution=40), source)["weights"]


def single_steps(lab: Lab, column: str) -> Any:
    source = tf.data.Dataset.from_tensor_slices(arrays(320)).batch(8)
    return fit(_linear(context(lab, column)), source)["weights"]


def embedding_lengths(lab: Lab, column: str) -> Any:
    """Batches of different widths; each replica has other numbers of ids."""
    ctx = context(lab, column)

    def make() -> Any:
        return keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                keras.layers.Embedding(50, 4),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )

    optimizer = lambda: keras.optimizers.Adam(0.01, global_clipnorm=1.0)  # noqa: E731
    model = build(ctx, make, optimizer=optimizer, loss="mse")

    def sequences() -> Iterator[Any]:
        for i in range(32):
            yield np.arange(i % 5 + 1 + i // 8, dtype="int32"), [float(i % 3)]

    signature = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((1,)))
    source = tf.data.Dataset.from_generator(sequences, output_signature=signature)
    source = source.padded_batch(8).apply(tf.data.experimental.assert_cardinality(4))
    with told() as messages:
        result = fit(model, source, epochs=3)
    floods = [m for m in messages if "IndexedSlices" in m]
    return {"history": result["history"], "weights": result["weights"], "own_floods": len(floods)}


def batch_norm_on_batch(lab: Lab, column: str) -> Any:
    ctx = context(lab, column)
    make = lambda: keras.Sequential(  # noqa: E731
        [keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    )
    model = build(ctx, make, optimizer="sgd", loss="mse")
    x, y = arrays(16)
    losses = [float(model.train_on_batch(x[:n], y[:n])) for n in (16, 7, 1)]
    return {
        "finite": bool(np.isfinite(losses).all()),
        "weights": bool(all(np.isfinite(w).all() for w in model.get_weights())),
        "rows": [len(model.predict_on_batch(x[:n])) for n in (16, 7, 1)],
    }


def distributed_and_scheduled(lab: Lab, column: str) -> Any:
    """A user's callback does float(optimizer.learning_rate), on a dataset distributed by hand."""
    ctx = context(lab, column)
    rates: list[float] = []

    class Read(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    source = tf.data.Dataset.from_tensor_slices(arrays(32)).batch(8)
    if ctx.strategy is not None:
        source = ctx.strategy.experimental_distribute_dataset(source)
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    result = fit(_linear(ctx), source, steps_per_epoch=2, callbacks=[halve, Read()])
    return {"rates": rates, "history": result["history"], "weights": result["weights"]}


def keras_distribution(lab: Lab) -> dict[str, str]:
    import tfdist

    reset()
    devices = ["cpu:0", "cpu:1"]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    try:
        return refusal(lambda: tfdist.create(strategy="single"))
    finally:
        keras.distribution.set_distribution(None)


def unequal_local(lab: Lab, column: str) -> Any:
    """Worker 0 holds 8 batches of its own, worker 1 holds 6; one device sees both side by side."""
    ctx = context(lab, column)
    model = _linear(ctx)
    x, y = arrays(56)
    parts = [(x[:32], y[:32]), (x[32:], y[32:])]
    if ctx.strategy is not None:
        source = tf.data.Dataset.from_tensor_slices(parts[ctx.rank]).batch(4)
        with told() as messages:
            result = fit(model, _policy(source, "OFF"))
        return {"history": result["history"], "weights": result["weights"], "own_told": messages}

    def batches() -> Iterator[Any]:
        for k in range(8):
            rows = [[a[4 * k : 4 * k + 4] for a in part] for part in parts]
            yield tuple(np.concatenate(columns) for columns in zip(*rows))

    signature = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    source = tf.data.Dataset.from_generator(batches, output_signature=signature)
    result = fit(model, source.apply(tf.data.experimental.assert_cardinality(8)))
    return {"history": result["history"], "weights": result["weights"], "own_told": []}


def file_policy_on_tensors(lab: Lab, column: str) -> dict[str, str]:
    ctx = context(lab, column)
    source = _policy(tf.data.Dataset.from_tensor_slices(arrays(32)).batch(8), "FILE")
    model = _linear(ctx)
    return refusal(lambda: model.fit(source, verbose=0)) | {
        "steps": str(int(model.optimizer.iterations))
    }


def from_files(lab: Lab, column: str, folder: str, policy: str) -> dict[str, Any]:
    """TFRecord files, which the test has written, and two workers."""
    ctx = context(lab, column, folder)

    def parse(record: Any) -> Any:
        row = tf.reshape(tf.io.decode_raw(record, tf.float32), (5,))
        return row[:4], row[4:]

    files = sorted(str(path) for path in ctx.folder.glob("*.tfrecord"))
    if ctx.strategy is None and len(files) > 1:  # the workers' files side by side
        parts = [tf.data.TFRecordDataset([name]).map(parse) for name in files]
        source = tf.data.Dataset.zip(*[part.batch(4) for part in parts])
        source = source.map(lambda *pairs: tuple(tf.concat(c, 0) for c in zip(*pairs)))
    else:
        source = tf.data.TFRecordDataset(files).map(parse).batch(8)
    source = _policy(source, policy) if ctx.strategy is not None else source
    model = _linear(ctx)
    with told() as messages:
        refused = refusal(lambda: fit(model, source))
    result = {"refused": refused, "own_told": messages}
    return result | ({"weights": state(model)["weights"]} if refused["kind"] == "none" else {})


def rows_seen(lab: Lab, column: str) -> Any:
    """The ids of the rows that the replicas of this process trained on, and the global loss."""
    ctx = context(lab, column)
    seen: list[list[int]] = []

    def make() -> Any:
        class Watched(keras.Model):
            def train_step(self, data: Any) -> dict:
                (x, ids), y = data

                def note(values: Any) -> Any:
                    seen.append(sorted(int(v) for v in values.ravel()))
                    return np.int64(0)

                noted = tf.numpy_function(note, [ids], tf.int64)
                with tf.control_dependencies([noted]):
                    return super().train_step(((x, tf.identity(ids)), y))

        x, ids = keras.Input((4,)), keras.Input((1,), dtype="int32")
        return Watched(inputs=(x, ids), outputs=keras.layers.Dense(1)(x))

    model = build(ctx, make, optimizer="sgd", loss="mse")
    x, y = arrays(22)
    ids = np.arange(22, dtype="int32")[:, None]
    source = tf.data.Dataset.from_tensor_slices(((x, ids), y)).batch(8)
    history = fit(model, source, epochs=1)["history"]
    return {"history": history, "own_rows": seen}


def hand_written_step(lab: Lab, column: str, recipe: str) -> float:
    """One SGD step in `strategy.run`: how long it is, in true steps."""
    ctx = context(lab, column)
    x, y = arrays(16)
    loss_object = keras.losses.MeanSquaredError()
    with ctx.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")]
        )
        optimizer: Any = keras.optimizers.SGD(0.1)
        if recipe == "scaled":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        if recipe != "optimizer not built":
            optimizer.build(model.trainable_variables)

    def step(xb: Any, yb: Any) -> None:
        with tf.GradientTape() as tape:
            predicted = model(xb)
            if recipe == "average":
                errors = keras.losses.mean_squared_error(yb, predicted)
                loss = tf.nn.compute_average_loss(errors, global_batch_size=16)
            else:
                loss = loss_object(yb, predicted)
            if recipe == "scaled":
                loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    source = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    run = tf.function(lambda batch: ctx.strategy.run(step, args=batch))
    for batch in ctx.strategy.experimental_distribute_dataset(source):
        run(batch)
    true_step = 0.2 * (x * y).mean(0)
    return float((model.get_weights()[0].ravel() / true_step).mean())


def stop_votes(lab: Lab, column: str) -> dict[str, Any]:
    """EarlyStopping on a number that gets worse on one worker only."""
    ctx = context(lab, column)

    class Local(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["local"] = float(epoch) if ctx.rank == 1 else float(-epoch)

    stop = keras.callbacks.EarlyStopping(monitor="local", mode="min", patience=0)
    with told() as messages:
        result = fit(_linear(ctx), *arrays(), epochs=6, callbacks=[Local(), stop])
    return {"epochs": len(result["history"]["loss"]), "told": messages}


def dropout_masks(lab: Lab, column: str) -> list[np.ndarray]:
    """The masks that this process's replicas draw in two steps, from a fixed seed."""
    ctx = context(lab, column)
    with ctx.scope():
        layer = keras.layers.Dropout(0.5, seed=3)
        layer.build((None, 64))

    @tf.function
    def draw() -> Any:
        return ctx.strategy.run(lambda: layer(tf.ones((1, 64)), training=True))

    local = ctx.strategy.experimental_local_results
    return [mask.numpy() for _ in range(2) for mask in local(draw())]


def fingerprint(lab: Lab, column: str) -> str:
    """A hash of the weights after training from a fixed seed."""
    ctx = context(lab, column)
    result = fit(mlp(ctx, optimizer="adam"), *arrays(48), epochs=3)
    return hashlib.md5(b"".join(w.tobytes() for w in result["weights"].values())).hexdigest()


def outside_scope(lab: Lab, column: str, made: str) -> dict[str, str]:
    """Trains with an object that was made under another strategy, or under none."""
    ctx = context(lab, column)
    make = lambda: keras.Sequential(  # noqa: E731
        [keras.Input((4,)), keras.layers.Dense(1, name="readout")], name="net"
    )
    if made == "optimizer":
        optimizer = keras.optimizers.Adam(name="my_adam")
        with ctx.scope():
            model = make()
            model.compile(optimizer, "mse")
    elif made == "compile":
        with ctx.scope():
            model = make()
        model.compile(keras.optimizers.Adam(name="my_adam"), "mse")
    elif made == "model":
        model = make()
        model.compile("sgd", "mse")
    elif made == "layer":
        layer = keras.layers.Dense(1, name="readout")
        layer.build((None, 4))
        with ctx.scope():
            model = keras.Sequential([keras.Input((4,)), layer], name="net")
            model.compile("sgd", "mse")
    else:
        with lab.strategies["single"].scope():
            model = make()
            model.compile("sgd", "mse")

    def train() -> None:
        if made in ("model", "other strategy"):
            with ctx.scope():
                model.fit(*arrays(), verbose=0)
        else:
            model.fit(*arrays(), verbose=0)

    return refusal(train) | {"steps": str(int(model.optimizer.iterations))}


def own_halves(lab: Lab, column: str, declared: bool) -> Any:
    """Each worker passes its own half of the rows, and says so, or does not."""
    ctx = context(lab, column)
    model = _linear(ctx)
    x, y = arrays(64)
    if ctx.strategy is None:  # rows of worker 0 and worker 1 side by side, as the global batches
        order = [
            i for k in range(8) for w in (0, 1) for i in range(32 * w + 4 * k, 32 * w + 4 * k + 4)
        ]
        return fit(model, x[order], y[order])["weights"]
    mine = slice(32 * ctx.rank, 32 * ctx.rank + 32)
    if declared:
        source = tf.data.Dataset.from_tensor_slices((x[mine], y[mine])).batch(4)
        return fit(model, _policy(source, "OFF"))["weights"]
    return refusal(lambda: fit(model, x[mine], y[mine]))


def steps_and_data(lab: Lab, column: str) -> dict[str, Any]:
    """More steps than data, and data without an end: both refused before training."""
    ctx = context(lab, column)
    source = tf.data.Dataset.from_tensor_slices(arrays(32)).batch(8)
    model = _linear(ctx)
    found = {
        "too many": refusal(lambda: model.fit(source, epochs=2, steps_per_epoch=6, verbose=0)),
        "endless": refusal(lambda: model.fit(source.repeat(), verbose=0)),
        "endless validation": refusal(
            lambda: model.fit(source, validation_data=source.repeat(), verbose=0)
        ),
        "endless evaluate": refusal(lambda: model.evaluate(source.repeat(), verbose=0)),
    }
    return found | {"steps": int(model.optimizer.iterations)}


def rows_per_replica(lab: Lab, column: str, rows: int) -> list[int]:
    """How many rows each replica of this process gets of one global batch."""
    ctx = context(lab, column)
    seen: list[int] = []

    def make() -> Any:
        class Show(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                def note(n: Any) -> Any:
                    seen.append(int(n))
                    return np.int32(0)

                noted = tf.numpy_function(note, [tf.shape(x)[0]], tf.int32)
                with tf.control_dependencies([noted]):
                    return tf.identity(x)

            def compute_output_spec(self, x: Any) -> Any:
                return keras.KerasTensor(x.shape, x.dtype)

        return keras.Sequential([keras.Input((4,)), Show(), keras.layers.Dense(1)])

    model = build(ctx, make, optimizer="sgd", loss="mse")
    seen.clear()
    model.fit(*arrays(rows), batch_size=rows, verbose=0)
    return sorted(seen)


def failing_callback(lab: Lab, column: str) -> dict[str, str]:
    """A callback raises on worker 1 alone."""
    ctx = context(lab, column)

    class Bug(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and ctx.rank == 1:
                raise ValueError("user bug on worker 1")

    model = _linear(ctx)
    return refusal(lambda: fit(model, *arrays(), epochs=5, callbacks=[Bug()]))


def advice(lab: Lab, column: str, made: str) -> list[str]:
    """What `fit` logs, in two calls, about a model that trains but not as its user may think."""
    ctx = context(lab, column)
    if made == "float16 softmax":
        keras.mixed_precision.set_dtype_policy("mixed_float16")

    def make() -> Any:
        layers = keras.layers
        first = {
            "plain": lambda: layers.BatchNormalization(name="plain_bn"),
            "synchronized": lambda: layers.BatchNormalization(synchronized=True),
            "float16 softmax": lambda: layers.Dense(4),
        }[made]
        return keras.Sequential([keras.Input((4,)), first(), layers.Dense(1, "softmax")])

    model = build(ctx, make, optimizer="sgd", loss="mse")
    with told() as messages:
        fit(model, *arrays(16), epochs=1)
        fit(model, *arrays(16), epochs=1)
    return messages
