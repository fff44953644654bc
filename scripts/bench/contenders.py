"""One process of a contender: trains a fixed number of steps whenever it has the turn.

    python contenders.py fit|loop|ddp --strategy=mirrored --model=mlp ...

`fit` is Keras's, under a tfdist strategy. `loop` is what one writes without it: TensorFlow's own
strategy and the training loop of its guide to custom training. `ddp` is PyTorch's
DistributedDataParallel over gloo. All of them read the same arrays over and over, train the same
model with the same optimizer, and keep the loss and the accuracy. A turn of `fit` is an epoch of one
long `fit`; the others' turns are the same number of steps. So the start of training and the making
of iterators are in nobody's time, and the work between steps, and at the end of an epoch, is.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

from turns import end_turn, wait_for_turn
from workloads import images, keras_model, torch_model


def main() -> None:
    """Reads the arguments, and serves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(_KINDS))
    parser.add_argument("--strategy", choices=("single", "mirrored", "multi_worker"), required=True)
    parser.add_argument("--model", default="simple_cnn")
    parser.add_argument("--size", type=int, default=28, help="images are size x size")
    parser.add_argument("--batch", type=int, default=128, help="global batch size")
    parser.add_argument("--steps", type=int, default=100, help="steps of one turn")
    parser.add_argument("--replicas", type=int, default=2, help="devices of `mirrored`")
    parser.add_argument("--core", type=int, help="the core to stay on, with one thread")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    _KINDS[options.kind](options)


def _configure_tensorflow(options: argparse.Namespace) -> None:
    import tensorflow as tf

    if options.core is not None:
        tf.config.threading.set_intra_op_parallelism_threads(1)


def _dataset(options: argparse.Namespace, batch: int, rank: int = 0, workers: int = 1) -> Any:
    """Returns batches of this worker's share of the images, without end."""
    import tensorflow as tf

    x, y = images(options.batch * options.steps, options.size)
    dataset = tf.data.Dataset.from_tensor_slices((x[rank::workers], y[rank::workers]))
    dataset = dataset.repeat().batch(batch, drop_remainder=True).prefetch(2)
    policy = tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(policy)


def fit(options: argparse.Namespace) -> None:
    """`model.fit` under tfdist."""
    import keras

    import tfdist

    _configure_tensorflow(options)
    runtime = tfdist.create(
        strategy=options.strategy,
        devices=f"cpu:{options.replicas}" if options.strategy == "mirrored" else "cpu",
        global_batch_size=options.batch,
        seed=0,
    )
    with runtime.scope():
        model = keras_model(options.model, options.size)
        model.compile(
            keras.optimizers.SGD(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    class Turns(keras.callbacks.Callback):
        """Waits before each epoch but the first, which traces and warms up."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch > 0:
                wait_for_turn()
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch > 0:
                end_turn(time.perf_counter() - self.began)

    model.fit(
        _dataset(options, options.batch // runtime.num_workers, runtime.rank, runtime.num_workers),
        epochs=_FOREVER,
        steps_per_epoch=options.steps,
        callbacks=[Turns()],
        verbose=0,
    )


def loop(options: argparse.Namespace) -> None:
    """A hand-written loop under TensorFlow's own strategy."""
    import keras
    import tensorflow as tf

    _configure_tensorflow(options)
    strategy = _stock_strategy(options)
    workers = int(os.environ["WORLD_SIZE"])
    with strategy.scope():
        model = keras_model(options.model, options.size)
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    # TensorFlow takes any batch for a global one, and gives a replica its part of it.
    distributed = strategy.experimental_distribute_dataset(
        _dataset(options, options.batch, int(os.environ["RANK"]), workers)
    )

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            value = loss(y, logits)  # a Keras loss divides by the replicas itself
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(y, logits)
        return value

    @tf.function
    def distributed_step(x: Any, y: Any) -> Any:
        losses = strategy.run(step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    iterator = iter(distributed)

    def block() -> None:
        total = tf.zeros(())
        for _ in range(options.steps):
            total += distributed_step(*next(iterator))
        float(total) / options.steps, float(accuracy.result())
        accuracy.reset_state()

    _take_turns(block)


def _take_turns(block: Callable[[], None]) -> None:
    """Runs a block once to warm up, then once for each turn."""
    block()
    while True:
        wait_for_turn()
        began = time.perf_counter()
        block()
        end_turn(time.perf_counter() - began)


def _stock_strategy(options: argparse.Namespace) -> Any:
    import tensorflow as tf

    if options.strategy == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if options.strategy == "single":
        return tf.distribute.get_strategy()
    cpus = [tf.config.LogicalDeviceConfiguration()] * options.replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(options.replicas)])


def ddp(options: argparse.Namespace) -> None:
    """PyTorch's DistributedDataParallel over gloo; one process is the plain model."""
    import torch
    from torch import distributed, nn

    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1 if options.core is not None else torch.get_num_threads())
    torch.manual_seed(0)
    model: Any = torch_model(options.model, options.size)
    if workers > 1:
        distributed.init_process_group("gloo", rank=rank, world_size=workers)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss()
    x, y = images(options.batch * options.steps, options.size)
    inputs = torch.from_numpy(x[rank::workers].transpose(0, 3, 1, 2).copy())
    labels = torch.from_numpy(y[rank::workers])
    own = options.batch // workers

    def block() -> None:
        total = correct = 0.0
        for start in range(0, len(inputs), own):
            batch, wanted = inputs[start : start + own], labels[start : start + own]
            optimizer.zero_grad()
            logits = model(batch)
            value = loss(logits, wanted)
            value.backward()
            optimizer.step()
            total += float(value.detach())
            correct += float((logits.detach().argmax(1) == wanted).sum())

    _take_turns(block)


_FOREVER = 1_000_000  # epochs; the end of stdin ends the process
_KINDS = {"fit": fit, "loop": loop, "ddp": ddp}

if __name__ == "__main__":
    main()
