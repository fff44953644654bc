"""Cases of test_sharded_embedding.py and test_embedding_on_servers.py, for processes of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from embedding_server import cluster_spec

from tfdist import initial_rows
from tfdist.layers import ShardedEmbedding
from tfdist.strategies.placement import Placement

ROWS, WIDTH = 41, 4

_servers: list[Any] = []  # they serve as long as they are referred to


def ids() -> np.ndarray:
    """Ids of which some come many times, some never, in an uneven last batch."""
    return np.random.default_rng(0).integers(0, 30, size=(23, 3)).astype("int32")


def targets() -> np.ndarray:
    return (ids().sum(1, keepdims=True) / 60).astype("float32")


def model(
    embedding: Callable[[], Any], optimizer: Any = "sgd", strategy: Any = None, seed: int = 3
) -> Any:
    """A compiled model around an embedding layer, made in the strategy's scope."""
    keras.utils.set_random_seed(seed)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        network = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                embedding(),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        network.compile(optimizer if isinstance(optimizer, str) else optimizer(), "mse")
    return network


def plain() -> Any:
    return keras.layers.Embedding(ROWS, WIDTH)


def sharded(shards: int | None) -> Callable[[], Any]:
    return lambda: ShardedEmbedding(ROWS, WIDTH, shards=shards)


def train(network: Any, epochs: int = 2) -> list[float]:
    return network.fit(
        ids(), targets(), batch_size=8, epochs=epochs, shuffle=False, verbose=0
    ).history["loss"]


# -- two replicas in one process ------------------------------------------------------------------


def two_devices() -> Any:
    import tfdist

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tfdist.strategies.MirroredStrategy(["CPU:0", "CPU:1"])


def mirrored_and_alone(strategy: Any, optimizer: str) -> list[dict[str, Any]]:
    """Trains with two replicas and three shards, and on one device without shards."""
    runs = []
    for embedding, where in ((sharded(3), strategy), (plain, None)):
        network = model(embedding, lambda: keras.optimizers.get(optimizer), where)
        loss = train(network)
        runs.append({"loss": loss, "table": network.layers[0].get_weights()[0]})
    return runs


# -- a chief, one worker and two parameter servers --------------------------------------------------


def coordinate(addresses: str) -> Any:
    """Starts the worker in this process and returns the chief's strategy."""
    cluster = cluster_spec(addresses)
    _servers.append(tf.distribute.Server(cluster, "worker", 0))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def task_of(variable: Any) -> int:
    return int(variable.value.device.partition("/job:ps/replica:0/task:")[2].partition("/")[0])


def place_by_bytes(strategy: Any, biggest: int) -> dict[str, Any]:
    """Builds a table after a dense variable of so many numbers, placed as tfdist's strategy does."""
    drawn_on = []
    original = initial_rows.rows_initializer

    def spied(*arguments: Any) -> Any:
        draw = original(*arguments)

        def rows(*shape: Any, **kwargs: Any) -> Any:
            values = draw(*shape, **kwargs)
            drawn_on.append((values.device, tuple(values.shape)))
            return values

        return rows

    placement = Placement(2, by_bytes=True)
    create = strategy.extended._create_variable
    initial_rows.rows_initializer = spied
    placement.install(strategy.extended)
    try:
        with strategy.scope():
            keras.Variable(tf.zeros(biggest))
            layer = ShardedEmbedding(1000, 16)
            layer.build()
    finally:
        strategy.extended._create_variable = create
        initial_rows.rows_initializer = original
    return {
        "tasks": [task_of(shard) for shard in layer._table],
        "bytes": placement.bytes,
        "drawn on": [place for place in drawn_on if "/job:ps" in place[0]],
        "largest": max(rows for _, (rows, _) in drawn_on),
    }


def train_on_servers(strategy: Any, optimizer: str, folder: str) -> dict[str, Any]:
    """Trains through a ClusterCoordinator, and saves."""
    network = model(sharded(None), lambda: getattr(keras.optimizers, optimizer)(0.05), strategy)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        network.optimizer.build(network.trainable_variables)
    seen: dict[str, Any] = {}

    @tf.function
    def step(x: Any, y: Any) -> Any:
        def replica() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(network(x, training=True) - y))
            gradients = tape.gradient(loss, network.trainable_variables)
            seen["gradients"] = [type(g).__name__ for g in gradients]
            network.optimizer.apply(gradients, network.trainable_variables)
            return loss

        return strategy.run(replica)

    for _ in range(2):
        for begin in range(0, len(ids()), 8):
            rows = slice(begin, begin + 8)
            coordinator.schedule(
                step, args=(tf.constant(ids()[rows]), tf.constant(targets()[rows]))
            )
            coordinator.join()
    table = network.layers[0]._table
    slots = [
        (task_of(slot), task_of(slot._tfdist_slot_of))
        for slot in network.optimizer.variables
        if hasattr(slot, "_tfdist_slot_of")
    ]
    network.save(f"{folder}/model.keras")
    network.save_weights(f"{folder}/model.weights.h5")
    network.export(f"{folder}/exported", verbose=False)
    return {
        "shards": [tuple(shard.shape) for shard in table],
        "tasks": [task_of(shard) for shard in table],
        "slots": slots,
        "gradients": seen["gradients"],
        "scatters": _scatters(step),
        "predictions": np.asarray(network(ids())),
        "optimizer": [v.numpy() for v in network.optimizer.variables],
    }


def _scatters(step: Any) -> int:
    """How many sparse updates a traced step makes."""
    graph = step.get_concrete_function(
        tf.TensorSpec((None, 3), tf.int32), tf.TensorSpec((None, 1))
    ).graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return sum(n.op.startswith("ResourceScatter") for n in nodes)
