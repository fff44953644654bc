"""Mistakes that show only in a process of their own; see tests/test_bad_input.py.

    python bad_input_cases.py CASE [CASE ...]

runs the cases one after another and prints a line of JSON for each: what was raised, and when.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import tfdist


@contextlib.contextmanager
def cluster(*addresses: str, index: int = 0, **jobs: list[str]) -> Iterator[None]:
    """Sets TF_CONFIG for a block."""
    with described({"worker": list(addresses), **jobs}, "worker", index):
        yield


@contextlib.contextmanager
def described(jobs: dict[str, list[str]], role: str, index: int = 0) -> Iterator[None]:
    """Sets TF_CONFIG for a block."""
    config = {"cluster": jobs, "task": {"type": role, "index": index}}
    os.environ["TF_CONFIG"] = json.dumps(config)
    try:
        yield
    finally:
        del os.environ["TF_CONFIG"]


@contextlib.contextmanager
def bound(*, listening: bool) -> Iterator[str]:
    """An address that is held, or that another program listens on."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0 if listening else 1)
        held.bind(("127.0.0.1", 0))
        if listening:
            held.listen()
        yield f"127.0.0.1:{held.getsockname()[1]}"


def keras_backend() -> None:
    tfdist.create()


def keras_distribution() -> None:
    import keras

    mesh = keras.distribution.DeviceMesh((1,), ["batch"], ["cpu:0"])
    keras.distribution.set_distribution(keras.distribution.DataParallel(device_mesh=mesh))
    try:
        tfdist.create()
    finally:
        keras.distribution.set_distribution(None)


def missing_gpu() -> None:
    tfdist.create(devices="gpu:0,3")


def no_gpu() -> None:
    tfdist.create(devices="gpu")


def nccl_on_cpus() -> None:
    tfdist.create(strategy="mirrored", devices="cpu:4", implementation="nccl")


def port_in_use() -> None:
    with bound(listening=True) as address, cluster(address):
        tfdist.create(strategy="multi_worker", devices="cpu:4")


def peer_missing() -> None:
    with bound(listening=False) as own, bound(listening=False) as peer, cluster(own, peer):
        tfdist.create(devices="cpu:4", start_timeout=1.0)


def class_peer_missing() -> None:
    os.environ["TFDIST_START_TIMEOUT"] = "1"
    try:
        with bound(listening=False) as own, bound(listening=False) as peer, cluster(own, peer):
            tfdist.strategies.MultiWorkerMirroredStrategy()
    finally:
        del os.environ["TFDIST_START_TIMEOUT"]


def class_index_out_of_range() -> None:
    with cluster("127.0.0.1:1000", "127.0.0.1:1001", index=2):
        tfdist.strategies.MultiWorkerMirroredStrategy()


def class_with_ps() -> None:
    with cluster("127.0.0.1:1000", ps=["127.0.0.1:1001"]):
        tfdist.strategies.MultiWorkerMirroredStrategy()


def batch_smaller_than_the_replicas() -> None:
    tfdist.create(devices="cpu:4", global_batch_size=3)


def batch_not_divisible() -> None:
    tfdist.create(devices="cpu:4", strategy="mirrored", global_batch_size=10)


def _runtime() -> tfdist.Runtime:
    """The Runtime that the remaining cases of a process share."""
    return tfdist.create(devices="cpu:4", seed=1)


def second_create() -> None:
    _runtime()
    tfdist.create(devices="cpu:2", seed=1)


def second_create_in_a_cluster() -> None:
    _runtime()
    with cluster("127.0.0.1:1000", "127.0.0.1:1001"):
        _runtime()


def cluster_set_too_late() -> None:
    runtime = _runtime()
    with cluster("127.0.0.1:1000", "127.0.0.1:1001"):
        runtime.scope()


def _model() -> Any:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def model_outside_the_scope() -> None:
    import numpy as np

    _runtime()
    _model().fit(np.zeros((8, 4)), np.zeros((8, 1)), verbose=0)


def optimizer_outside_the_scope() -> None:
    import keras
    import numpy as np

    runtime = _runtime()
    optimizer = keras.optimizers.SGD()
    with runtime.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
    model.fit(np.zeros((8, 4)), np.zeros((8, 1)), verbose=0)


def servers_missing() -> None:
    with (
        bound(listening=False) as chief,
        bound(listening=False) as worker,
        bound(listening=False) as ps,
        described({"chief": [chief], "worker": [worker], "ps": [ps]}, "chief"),
    ):
        tfdist.strategies.ParameterServerStrategy(start_timeout=1.0)


def port_of_a_ps_in_use() -> None:
    with bound(listening=True) as ps:
        jobs = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": [ps]}
        with described(jobs, "ps"):
            tfdist.create(start_timeout=1.0)


def missing_device() -> None:
    _runtime()
    tfdist.strategies.MirroredStrategy(["CPU:0", "CPU:5"])


def device_named_twice() -> None:
    _runtime()
    tfdist.strategies.MirroredStrategy(["CPU:0", "CPU:0"])


def nccl_between_cpus() -> None:
    import tensorflow as tf

    _runtime()
    tfdist.strategies.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.NcclAllReduce()
    )


def unknown_dataset() -> None:
    _runtime().dataset("digist")


def unknown_split() -> None:
    _runtime().dataset("digits", "trian")


def unknown_dataset_option() -> None:
    _runtime().dataset("digits", shuffle_bufer=10)


def wrong_dataset_option() -> None:
    _runtime().dataset("digits", shuffle_buffer=0)


def devices_after_tensorflow() -> None:
    import tensorflow as tf

    tf.constant(1.0)
    tfdist.create(devices="cpu:2")


def cluster_after_tensorflow() -> None:
    import tensorflow as tf

    tf.constant(1.0)
    with bound(listening=False) as own, cluster(own):
        tfdist.create(strategy="multi_worker")


def class_after_tensorflow() -> None:
    import tensorflow as tf

    tf.constant(1.0)
    with bound(listening=False) as own, cluster(own):
        tfdist.strategies.MultiWorkerMirroredStrategy()


if __name__ == "__main__":
    if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
        import keras  # noqa: F401  (its import is no part of a case's time)
    for case in sys.argv[1:]:
        started = time.monotonic()
        try:
            globals()[case]()
            raised: dict[str, Any] = {"error": None, "message": ""}
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            raised = {"error": kinds[0], "kinds": kinds, "message": str(error)}
        raised |= {"case": case, "seconds": time.monotonic() - started}
        print("RESULT " + json.dumps(raised), flush=True)
