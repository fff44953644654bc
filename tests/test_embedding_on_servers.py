"""ShardedEmbedding on real parameter servers: a chief with a worker, and two servers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import embedding_cases
import keras
import numpy as np
import pytest
import tensorflow as tf
from support.processes import held_ports
from support.server import CaseServer

CASES = "embedding_cases"


@pytest.fixture(scope="module")
def chief() -> Iterator[CaseServer]:
    with held_ports(3) as addresses:
        joined = ",".join(addresses)
        group = [
            CaseServer("embedding_server:serve", arguments=[joined, str(index)])
            for index in range(2)
        ]
        group.append(CaseServer(f"{CASES}:coordinate", arguments=[joined]))
        try:
            with ThreadPoolExecutor() as starters:  # importing TensorFlow takes each some seconds
                list(starters.map(lambda server: server._start(), group))
            yield group[-1]
        finally:
            for server in reversed(group):
                server.close()


# Adam's moments decay in every row at every step, so that Keras updates whole tables with it.
@pytest.mark.parametrize(("optimizer", "slots", "scatters"), [("Adagrad", 2, 4), ("Adam", 4, 0)])
def test_a_table_trains_on_two_servers_and_loads_anywhere(
    chief: CaseServer, tmp_path: Path, optimizer: str, slots: int, scatters: int
) -> None:
    (seen,) = chief.call(
        f"{CASES}:train_on_servers", optimizer=optimizer, folder=str(tmp_path), timeout=90.0
    )
    assert seen["shards"] == [(21, 4), (20, 4)]
    assert sorted(seen["tasks"]) == [0, 1]
    assert seen["slots"] == [(task, task) for task in seen["tasks"] for _ in range(slots // 2)]
    assert seen["gradients"][:2] == ["IndexedSlices"] * 2
    assert seen["scatters"] == scatters

    make = lambda: getattr(keras.optimizers, optimizer)(0.05)  # noqa: E731
    alone = embedding_cases.model(embedding_cases.plain, make)
    embedding_cases.train(alone)
    ids = embedding_cases.ids()
    wanted = seen["predictions"]
    np.testing.assert_allclose(alone.predict(ids, verbose=0), wanted, rtol=1e-4, atol=1e-6)

    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(loaded.layers[0].trainable_variables) == 1
    np.testing.assert_allclose(loaded.predict(ids, verbose=0), wanted, atol=1e-6)
    three = embedding_cases.model(embedding_cases.sharded(3), make, seed=9)
    three.optimizer.build(three.trainable_variables)
    three.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(three.predict(ids, verbose=0), wanted, atol=1e-6)
    served = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(served.serve(ids), wanted, atol=1e-6)

    for network in (alone, loaded, three):  # and goes on alike, with the optimizer's state
        embedding_cases.train(network, epochs=1)
    after = alone.predict(ids, verbose=0)
    for network in (loaded, three):
        np.testing.assert_allclose(network.predict(ids, verbose=0), after, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("biggest", [1, 4000])
def test_a_table_is_spread_by_bytes(chief: CaseServer, biggest: int) -> None:
    """Also next to a dense variable of half a shard; rows are drawn where they are kept."""
    (seen,) = chief.call(f"{CASES}:place_by_bytes", biggest=biggest)
    assert sorted(seen["tasks"]) == [0, 1]
    assert abs(seen["bytes"][0] - seen["bytes"][1]) <= 4 * max(biggest, 16)
    assert len(seen["drawn on"]) == 2
    for (device, shape), task in zip(seen["drawn on"], seen["tasks"]):
        assert f"/job:ps/replica:0/task:{task}" in device
        assert shape == (500, 16)
    assert seen["largest"] == 500
