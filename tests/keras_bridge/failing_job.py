"""Trains on two workers, one of which fails in the way that is asked for.

python failing_job.py callback|killed|batch_stop|left RANK
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import keras
import numpy as np

from tfdist.callbacks import NanGuard
from tfdist.strategies import MultiWorkerMirroredStrategy


class Failing(keras.callbacks.Callback):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2 and self.how == "callback":
            raise ValueError("user bug\nwith a second line")
        if epoch == 2 and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1 and self.how == "batch_stop":
            self.model.stop_training = True


def main() -> None:
    how, failing = sys.argv[1], int(sys.argv[2])
    strategy = MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((32, 4), "float32"), np.ones((32, 1), "float32")
    is_failing = strategy.tfdist.rank == failing
    callbacks: list[Any] = [Failing(how)] if is_failing else []
    if how == "nan":
        callbacks = [NanGuard()]
        x[13] = np.nan  # of the second batch's 8 rows, the sixth: of worker 1
    try:
        epochs = 2 if how == "left" else 50
        model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
        if how == "left" and not is_failing:
            model.evaluate(x, y, batch_size=8, verbose=0)
    finally:
        print(f"ended at {time.time():.2f}", flush=True)
    if how == "left":
        os._exit(0)


if __name__ == "__main__":
    main()
