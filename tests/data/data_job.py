"""A worker of test_data_job.py: reads and trains as one of several, prints what it saw as JSON."""

import json
import sys

import keras
import numpy as np

import tfdist

ROWS = np.arange(26, dtype="float32")


def model():
    result = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    result.compile(keras.optimizers.SGD(1e-3), "mse")
    return result


def rows_of(dataset):
    return [np.asarray(batch).astype(int).tolist() for batch in dataset.as_numpy_iterator()]


def refused(make):
    try:
        make()
    except tfdist.errors.DataError as error:
        return str(error)
    return "accepted"


def history(runtime, dataset, peek=False):
    with runtime.scope():
        trained = model()
    if peek:
        next(iter(dataset))
    logs = trained.fit(dataset, epochs=2, verbose=0).history["loss"]
    return logs + trained.fit(dataset, epochs=1, verbose=0).history["loss"]


def pairs(runtime, rows=ROWS, **options):
    return runtime.dataset((rows[:, None], 2 * rows[:, None]), **options)


def main():
    settings = {"strategy": sys.argv[1], "global_batch_size": 8, "seed": 5, "data_dir": sys.argv[2]}
    runtime = tfdist.create(**settings)
    rank = runtime.rank
    results = {
        "digits": [label.tolist() for _, label in runtime.dataset().take(3).as_numpy_iterator()],
        "rows": [rows_of(runtime.dataset(ROWS)) for _ in range(2)],
        "history": history(runtime, pairs(runtime), peek=rank == 0),
    }
    if runtime.num_workers > 1:
        own = ROWS[: 20 - 8 * rank]
        local = pairs(runtime, own, shard="local")
        results |= {
            "local steps": tfdist.data.steps_per_epoch(local),
            "local history": history(runtime, local),
            "halves": refused(lambda: runtime.dataset(ROWS[rank * 13 : rank * 13 + 13])),
            "seeds": refused(lambda: runtime.dataset(ROWS, seed=rank)),
            "splits": refused(lambda: runtime.dataset(split=("train", "test")[rank])),
        }
    print("RESULTS", json.dumps(results))


if __name__ == "__main__":
    main()
