"""The chief's program of the fault tests: trains slowly, and says where it is.

python ps_job.py FOLDER EPOCHS WORKER_TIMEOUT [HOLD]

The second epoch begins when the file HOLD is there.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

STEPS = 60  # of an epoch
SAVE_EVERY = 20  # steps between two backups


def main(folder: str, epochs: int, worker_timeout: float, hold: str = "") -> None:
    import keras
    import numpy as np

    import tfdist
    from tfdist.strategies import ParameterServerStrategy

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    keras.utils.set_random_seed(1)
    strategy = ParameterServerStrategy(worker_timeout=worker_timeout)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * STEPS, 4)).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")

    class Slow(keras.callbacks.Callback):
        """Leaves time for accidents."""

        def on_train_begin(self, logs: Any = None) -> None:
            print(f"starts at {int(model.optimizer.iterations.numpy())}", flush=True)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.02)
            if batch % 10 == 9:
                print(f"batch {batch + 1}", flush=True)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            until = time.monotonic() + 120
            while epoch == 1 and hold and not os.path.exists(hold) and time.monotonic() < until:
                time.sleep(0.1)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            print(f"epoch {epoch + 1}: {int(model.optimizer.iterations.numpy())}", flush=True)

    backup = keras.callbacks.BackupAndRestore(folder, save_freq=SAVE_EVERY)
    try:
        model.fit(x, x.sum(1), batch_size=8, epochs=epochs, verbose=0, callbacks=[backup, Slow()])
    except tfdist.TfdistError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    print(f"finished at {int(model.optimizer.iterations.numpy())}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
