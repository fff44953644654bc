"""Batches of one size: what they hold, and that training and testing on them is right."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from support.processes import child_environment, deadline

from tfdist.data.fixed_shapes import pad
from tfdist.errors import DataError


def batches(rows: int, batch: int, weighted: bool = False) -> tf.data.Dataset:
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 1
    parts = (x, np.arange(rows)) + ((np.full(rows, 2.0, np.float32),) if weighted else ())
    return tf.data.Dataset.from_tensor_slices(parts).batch(batch)


@pytest.mark.parametrize("rows", [None, 10])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_last_batch_is_filled_up(weighted: bool, rows: int | None) -> None:
    padded = pad(batches(10, 4, weighted), 4, rows)
    assert [spec.shape[0] for spec in padded.element_spec] == [4, 4, 4]
    x, y, w = map(np.stack, zip(*padded.as_numpy_iterator()))
    assert x.shape == (3, 4, 2)
    assert x[2].tolist() == [[17, 18], [19, 20], [0, 0], [0, 0]]
    assert y[2].tolist() == [8, 9, 0, 0]
    weight = 12 / 10 * (2.0 if weighted else 1.0)
    np.testing.assert_allclose(w.ravel(), [weight] * 10 + [0, 0])


def test_full_batches_keep_weight_one() -> None:
    (_, _, w), *_ = pad(batches(8, 4), 4).as_numpy_iterator()
    assert w.tolist() == [1, 1, 1, 1]


def test_data_of_unknown_size_is_counted_and_strings_are_filled() -> None:
    source = tf.data.Dataset.from_tensor_slices((["a", "b", "c"], [1, 2, 3])).batch(2)
    padded = pad(source.filter(lambda x, y: True), 2)
    *_, (x, _, w) = padded.as_numpy_iterator()
    assert x.tolist() == [b"c", b""]
    np.testing.assert_allclose(w, [4 / 3, 0])


@pytest.mark.parametrize(
    "dataset",
    [
        tf.data.Dataset.range(8).batch(4),
        batches(8, 4).repeat(),
        batches(8, 4).map(lambda x, y: ({"a": x}, y, y, y)),
        tf.data.Dataset.range(8).map(lambda n: (n, n)),
    ],
)
def test_what_cannot_be_filled_up_is_refused(dataset: tf.data.Dataset) -> None:
    with pytest.raises(DataError):
        pad(dataset, 4)


JOB = """
import keras, numpy as np, tfdist
runtime = tfdist.create(strategy="mirrored", devices="cpu:2", global_batch_size=32, seed=1)
x = np.random.default_rng(0).normal(size=(75, 8)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
arrays = (x, y)

def train(fixed):
    runtime.strategy.tfdist.fixed_shapes = fixed
    keras.utils.set_random_seed(1)
    with runtime.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            weighted_metrics=["sparse_categorical_crossentropy"],
        )
    data = runtime.dataset(arrays, split="train", drop_remainder=True)
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
    held_out = runtime.dataset(arrays, split="test")
    return history, model.evaluate(held_out, verbose=0), model.predict(held_out, verbose=0), held_out

plain, fixed = train(False), train(True)
shapes = {tuple(e.shape for e in element) for element in fixed[3]}
assert shapes == {((32, 8), (32,), (32,))}, shapes
from tfdist.keras_bridge.input import build_input
element = build_input(runtime.strategy, fixed[3]).dataset.element_spec
assert list(element) == ["tfdist_data"], "the number of rows needs no telling"
import tensorflow as tf
rows = {leaf.shape[0] for spec in tf.nest.flatten(element) for leaf in spec._component_specs}
assert rows == {16}, rows
np.testing.assert_allclose(fixed[0], plain[0], rtol=1e-5)
np.testing.assert_allclose(fixed[1], plain[1], rtol=1e-5)
np.testing.assert_allclose(fixed[2][:75], plain[2], rtol=1e-5)
assert len(fixed[2]) == 96
runtime.strategy.tfdist.compiles = True
with runtime.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
import tfdist.keras_bridge.steps as steps
def fail(*_):
    raise AssertionError("compiled twice")
steps.jit_step = fail
model.fit(x, y, epochs=1, verbose=0)
print("fine")
"""


def test_fit_and_evaluate_on_batches_of_one_size() -> None:
    """On logical CPU devices, which don't need it, and so can tell whether it is right."""
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=child_environment(), capture_output=True, text=True,
        timeout=deadline(120),
    )  # fmt: skip
    assert done.stdout.strip() == "fine", done.stderr
