"""Takes one step of SGD for each way to compute a loss, with a loop of one's own and `fit` (P43).

Run by test_recipe.py in a process of its own; prints {way: step / step of one device} as JSON.
"""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf

import tfdist

runtime = tfdist.create(strategy="mirrored", devices="cpu:2", global_batch_size=16)
strategy = runtime.strategy
generator = np.random.default_rng(0)
X = generator.random((16, 4), dtype=np.float32)
Y = X.sum(1, keepdims=True)
TRUE_STEP = 0.1 * 2.0 * (X * Y).mean(0)  # of the mean squared error, from weights of zero

mse = keras.losses.MeanSquaredError()
per_example = keras.losses.MeanSquaredError(reduction="none")
LOSSES = {
    "keras loss": lambda y, p: mse(y, p),
    "compute_average_loss": lambda y, p: tf.nn.compute_average_loss(
        per_example(y, p), global_batch_size=16
    ),
    "keras loss / replicas": lambda y, p: mse(y, p) / strategy.num_replicas_in_sync,
    "reduce_mean": lambda y, p: tf.reduce_mean(tf.square(y - p)),
}


class OwnStep(keras.Model):
    """A `train_step` as custom-training.md has it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def size(model) -> float:
    return float(np.mean(model.get_weights()[0].ravel() / TRUE_STEP))


def batches(rows: int = 16) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(rows)


def by_loop(loss) -> float:
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False),
            ]
        )
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    @tf.function
    def distributed_step(batch):
        strategy.run(step, args=batch)

    for batch in strategy.experimental_distribute_dataset(batches()):
        distributed_step(batch)
    return size(model)


def by_fit() -> float:
    with strategy.scope():
        model = OwnStep()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(batches(), epochs=1, verbose=0)
    return size(model)


if __name__ == "__main__":
    steps = {name: by_loop(loss) for name, loss in LOSSES.items()}
    print(json.dumps({**steps, "train_step under fit": by_fit()}))
