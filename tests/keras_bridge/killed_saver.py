"""Saves a model over and over in a process that is killed at a random moment, several times.

    python killed_saver.py FOLDER ROUNDS

After each kill every file must load, and hold one version: all its weights have one value. The
processes are forked from this one, which has imported Keras but not used it, to save the seconds
of an import.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies import SingleDeviceStrategy


def build() -> keras.Model:
    with SingleDeviceStrategy().scope():
        model = keras.Sequential([keras.Input((64,))])
        for _ in range(3):
            model.add(keras.layers.Dense(64))
        model.compile("sgd", "mse")
    return model


def save_for_ever(folder: str, ready: int, version: int) -> None:
    model = build()
    first = True
    while True:
        version += 1
        model.set_weights([np.full(w.shape, version) for w in model.get_weights()])
        model.save(f"{folder}/m.keras")
        model.save_weights(f"{folder}/m.weights.h5")
        model.save_weights(f"{folder}/m.weights.json", max_shard_size=2e-5)
        model.export(f"{folder}/exported", verbose=False)
        if first:
            os.write(ready, b"x")
            first = False


def one_version(weights: list[np.ndarray]) -> int:
    values = {float(v) for w in weights for v in np.unique(w)}
    assert len(values) == 1, f"a mix of versions: {sorted(values)}"
    return int(values.pop())


def load_all(folder: str) -> None:
    versions = [one_version(keras.models.load_model(f"{folder}/m.keras").get_weights())]
    for name in ("m.weights.json", "m.weights.h5"):
        model = build()
        model.load_weights(f"{folder}/{name}")
        versions.append(one_version(model.get_weights()))
    exported: Any = tf.saved_model.load(f"{folder}/exported")
    versions.append(one_version([v.numpy() for v in exported.variables]))
    assert max(versions) - min(versions) <= 1, versions
    with open(f"{folder}/version", "w") as file:
        file.write(str(max(versions)))


def forked(call: Any, *args: Any) -> int:
    """Runs a call in a process of its own; returns its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            call(*args)
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(code)
    return pid


def main() -> None:
    folder, rounds = sys.argv[1], int(sys.argv[2])
    random.seed(11)
    version = 0
    for number in range(rounds):
        wait, ready = os.pipe()
        saver = forked(save_for_ever, folder, ready, version)
        os.close(ready)
        alive = os.read(wait, 1)
        os.close(wait)
        time.sleep(random.uniform(0.0, 0.6))
        os.kill(saver, signal.SIGKILL)
        os.waitpid(saver, 0)
        assert alive, "the saver failed"
        _, status = os.waitpid(forked(load_all, folder), 0)
        assert status == 0, f"round {number}: a file does not load"
        with open(f"{folder}/version") as file:
            version = int(file.read())
        print(f"round {number}: version {version}", flush=True)


if __name__ == "__main__":
    main()
