"""A program of a cluster with parameter servers, as users write it; the chief ends in the way it is told.

    python job.py END FOLDER

The chief trains until FOLDER/end exists, then: "done", "raise", "exit" (with 3), or "never" sees it.
Each step prints STEP where it is done, on the worker.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s %(name)s: %(message)s")
logging.getLogger("tensorflow").setLevel(logging.WARNING)
logging.getLogger("absl").setLevel(logging.WARNING)


def main() -> None:
    print("PID", os.getpid(), flush=True)
    import tfdist

    how, folder = sys.argv[1], Path(sys.argv[2])
    runtime = tfdist.create(
        start_timeout=float(os.environ.get("START_TIMEOUT", "60")), strategy="parameter_server"
    )
    import tensorflow as tf

    assert runtime.is_chief
    print(f"CHIEF {runtime!r} workers={runtime.num_workers} rank={runtime.rank}", flush=True)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(runtime.strategy)
    with runtime.scope():
        total = tf.Variable(0)

    @tf.function
    def step() -> tf.Tensor:
        tf.print("STEP")
        total.assign_add(1)
        return tf.identity(total)

    while not (folder / "end").exists() or how == "never":
        for _ in range(8):
            coordinator.schedule(step)
        coordinator.join()
        if not (folder / "steps").exists():
            print("TRAINS", flush=True)
            (folder / "steps").touch()
        time.sleep(0.05)
    print(f"TOTAL {total.numpy()}", flush=True)
    if how == "raise":
        raise ValueError("user bug\nand more of it")
    if how == "exit":
        sys.exit(3)


if __name__ == "__main__":
    main()
