"""What `tfdist.create` makes of a process; each case runs in a process of its own.

    python factory_cases.py CASE

prints one line of JSON. TF_CONFIG comes from the environment.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import tfdist


def facts(runtime: tfdist.Runtime) -> dict[str, Any]:
    """Everything a test may want to know of a Runtime."""
    return {
        "strategy": type(runtime.strategy).__name__,
        "name": runtime.strategy_name,
        "replicas": runtime.num_replicas,
        "batches": [runtime.global_batch_size, runtime.per_replica_batch_size],
        "rank": runtime.rank,
        "chief": runtime.is_chief,
        "workers": runtime.num_workers,
        "precision": runtime.precision,
        "seed": runtime.data_seed,
        "says": repr(runtime),
    }


def auto_on_four_cpus() -> dict[str, Any]:
    import keras
    import numpy as np

    from tfdist.strategies.context import is_initialized

    keras.config.set_dtype_policy("mixed_bfloat16")  # The script's own choice is kept.
    assert not is_initialized()
    runtime = tfdist.create(devices="cpu:4", seed=5)
    assert tfdist.create(devices="cpu:4", seed=5) is runtime
    assert tfdist.create(runtime.config) is runtime
    draws = [np.random.uniform(), keras.random.uniform((3,)).numpy().tolist()]
    keras.utils.set_random_seed(5)
    again = [np.random.uniform(), keras.random.uniform((3,)).numpy().tolist()]
    return facts(runtime) | {"draws": [draws, again]} | trained(runtime)


def trained(runtime: tfdist.Runtime) -> dict[str, Any]:
    """Trains a small model on the Runtime's own data set."""
    import keras
    import numpy as np

    with runtime.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    assert model.distribute_strategy is runtime.strategy
    x = np.arange(200.0, dtype="float32").reshape(50, 4) / 200
    arrays = (x, x.sum(1, keepdims=True))
    data = runtime.dataset(arrays, shuffle=False)
    history = model.fit(data, epochs=3, verbose=0, callbacks=runtime.callbacks()).history
    return {
        "rows": [len(batch[0]) for batch in data],
        "loss": history["loss"],
        "shuffled": [
            bool((np.concatenate([batch[0] for batch in part]) != x).any())
            for part in (runtime.dataset(arrays), runtime.dataset(arrays, "test", cache=False))
        ],
    }


def single() -> dict[str, Any]:
    import keras

    runtime = tfdist.create(
        devices="cpu:2",
        strategy="single",
        precision="float64",
        per_replica_batch_size=7,
        seed=1,
        deterministic=True,
    )
    return facts(runtime) | {"floatx": keras.config.floatx()}


def allowed_alone() -> dict[str, Any]:
    return facts(tfdist.create(strategy="multi_worker", allow_single=True))


def cluster_of_two() -> dict[str, Any]:
    return facts(tfdist.create(start_timeout=60, devices="cpu:2", per_replica_batch_size=3))


def different_settings() -> dict[str, Any]:
    """The workers' batch sizes, devices and paths differ: all hear of it, at once."""
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    settings = {"global_batch_size": 4 * (rank + 1), "devices": f"cpu:{rank + 1}"}
    if rank:
        settings["log_dir"] = "logs"
    try:
        tfdist.create(start_timeout=60, **settings)
    except tfdist.TfdistError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": None}


def in_an_evaluator() -> dict[str, Any]:
    return facts(tfdist.create(strategy="multi_worker"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    print("RESULT " + json.dumps(globals()[sys.argv[1]]()))
