"""Tests a saved model on a data set, under any strategy; prints its losses and metrics as JSON.

    python scripts/evaluate.py --model_path=runs/digits.keras --dataset=digits --split=test
    tfdist run -n 2 scripts/evaluate.py --model_path=runs/digits.keras --strategy=multi_worker

Every field of tfdist's Config is a flag too. To test checkpoints while a job trains, give the job an
evaluator instead: `tfdist run --workers 2 --ps 1 --evaluator scripts/train.py`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

import tfdist

FLAGS = flags.FLAGS

flags.DEFINE_string("model_path", None, "the saved model, a .keras file", required=True)
flags.DEFINE_string("split", "test", "which part of the data set to test on")
tfdist.flags.define()


def main(argv: Sequence[str]) -> int:
    """Tests the model; returns the exit code."""
    if not FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.WARNING)
    try:
        if len(argv) > 1 or not os.path.isfile(FLAGS.model_path):
            raise tfdist.errors.ConfigError(
                tfdist.errors.explain(
                    "There is no such model" if len(argv) == 1 else "This script takes flags only",
                    received=FLAGS.model_path if len(argv) == 1 else " ".join(argv[1:]),
                    source="--model_path" if len(argv) == 1 else "the command line",
                    fix="Give the path of a saved .keras file: --model_path=FILE",
                )
            )
        evaluate()
    except tfdist.TfdistError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def evaluate() -> None:
    """Loads the model under the strategy, and prints what it comes to.

    Raises:
        TfdistError: if a setting, the model or the data is wrong.
    """
    runtime = tfdist.create(tfdist.flags.config_from_flags())
    import keras

    data = runtime.dataset(split=FLAGS.split, training=False, as_supervised=True, map_fn=scale)
    try:
        with runtime.scope():
            model = keras.models.load_model(FLAGS.model_path)
    except (ValueError, OSError, KeyError) as error:
        raise tfdist.errors.ConfigError(
            tfdist.errors.explain(
                f"The model can't be loaded: {str(error).splitlines()[0]}",
                received=FLAGS.model_path,
                source="--model_path",
                fix="Give a model that model.save('NAME.keras') has written",
            )
        ) from error
    results = model.evaluate(data, verbose=0, return_dict=True)
    if runtime.is_chief:
        print(json.dumps({name: float(value) for name, value in results.items()}), flush=True)


def scale(image: Any, label: Any) -> tuple[Any, Any]:
    """Turns integer pixels, of 0 to 255, into 0 to 1, as in training."""
    import tensorflow as tf

    highest = image.dtype.max if image.dtype.is_integer else 1.0
    return tf.cast(image, tf.float32) / highest, label


if __name__ == "__main__":
    app.run(main)
