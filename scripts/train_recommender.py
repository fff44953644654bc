"""Trains a recommender on synthetic clicks under any strategy; the same command on every task.

    python scripts/train_recommender.py --strategy=mirrored --devices=cpu:2
    tfdist run --workers 2 --ps 2 scripts/train_recommender.py --save=runs/recommender.keras

Its tables are divided over the parameter servers where there are any. The clicks are drawn by
tfdist.data.synthetic_clicks: no model can rank them better than its AUC of 0.862.
Every field of tfdist's Config is a flag too; `--config=FILE` reads them from a file.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

import tfdist

FLAGS = flags.FLAGS
BATCH = 512  # where nothing is said: tfdist's own default suits images, not clicks

flags.DEFINE_enum("size", "small", ["small", "base", "large"], "which recommender")
flags.DEFINE_integer(
    "shards", None, "shards of each table; None: one for each parameter server", lower_bound=1
)
flags.DEFINE_integer("epochs", 3, "passes over the training data", lower_bound=1)
flags.DEFINE_integer(
    "steps_per_epoch",
    None,
    "steps of an epoch, through the data as often as need be; None: once through it",
)
flags.DEFINE_enum(
    "optimizer",
    "adagrad",
    ["adagrad", "adam", "ftrl", "sgd"],
    "adagrad, ftrl and sgd update only the rows of a batch; adam's moments decay in all rows",
)
flags.DEFINE_float("learning_rate", 0.2, "learning rate", lower_bound=0.0)
flags.DEFINE_integer("steps_per_execution", 1, "steps of one call into TensorFlow", lower_bound=1)
flags.DEFINE_string("save", None, "where to save the trained model, a path ending in .keras")
flags.DEFINE_bool("dry_run", False, "print what would be done, train nothing")
tfdist.flags.define()


def main(argv: Sequence[str]) -> int:
    """Trains, tests, saves; returns the exit code."""
    if not FLAGS["verbosity"].present:  # absl's default also shows TensorFlow's many lines
        absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("tfdist").setLevel(logging.INFO)
    try:
        return train(argv)
    except tfdist.TfdistError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def train(argv: Sequence[str]) -> int:
    """Does what the flags say.

    Raises:
        TfdistError: if a flag, the cluster or the data is wrong.
    """
    check(argv)
    config = tfdist.flags.config_from_flags()
    if config.global_batch_size is None and config.per_replica_batch_size is None:
        config = config.replace(global_batch_size=BATCH)
    runtime = tfdist.create(config)
    import keras

    from tfdist.data.clicks import NAME, NUMERIC, VOCABULARIES
    from tfdist.models.recommender import recommender

    data = runtime.dataset(NAME, split="train", repeat=FLAGS.steps_per_epoch is not None)
    held_out = runtime.dataset(NAME, split="test")
    with runtime.scope():
        model = recommender(VOCABULARIES, NUMERIC, size=FLAGS.size, shards=FLAGS.shards)
        model.compile(
            keras.optimizers.get(
                {"class_name": FLAGS.optimizer, "config": {"learning_rate": FLAGS.learning_rate}}
            ),
            keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
            steps_per_execution=FLAGS.steps_per_execution,
        )
    if FLAGS.dry_run:
        describe(runtime, model, data)
        return 0
    if FLAGS.save and runtime.is_chief:
        make_folder(os.path.dirname(FLAGS.save))  # now, rather than find out after training
    model.fit(
        data,
        epochs=FLAGS.epochs,
        steps_per_epoch=FLAGS.steps_per_epoch,
        shuffle=False,  # the data set does it
        validation_data=held_out,
        callbacks=runtime.callbacks(),
    )
    loss, auc = model.evaluate(held_out, verbose=0)
    if FLAGS.save:
        model.save(FLAGS.save)  # on every worker: the chief writes
    if runtime.is_chief:
        print(f"test loss: {loss:.4f}\ntest AUC: {auc:.4f}", flush=True)
        if FLAGS.save:
            print(f"saved {FLAGS.save}", flush=True)
    return 0


def check(argv: Sequence[str]) -> None:
    """Refuses stray arguments, and a path to save to that Keras would not take."""
    if len(argv) > 1:
        raise tfdist.errors.ConfigError(
            tfdist.errors.explain(
                "This script takes flags only",
                received=" ".join(argv[1:]),
                source="the command line",
                fix="Write --name=value; --help lists the flags",
            )
        )
    if FLAGS.save and not FLAGS.save.endswith(".keras"):
        raise tfdist.errors.ConfigError(
            tfdist.errors.explain(
                "A model is saved to a path that ends in .keras",
                received=FLAGS.save,
                source="--save",
                fix="Use a path such as runs/recommender.keras",
            )
        )


def make_folder(path: str) -> None:
    """Makes the folder that the model is saved to."""
    try:
        os.makedirs(path or ".", exist_ok=True)
    except OSError as error:
        raise tfdist.errors.SaveError(
            tfdist.errors.explain(
                "Can't make the folder to save the model to",
                received=f"{path}: {error.strerror}",
                source="--save",
                fix="Choose another path",
            )
        ) from None


def describe(runtime: tfdist.Runtime, model: Any, data: Any) -> None:
    """Prints settings, cluster, model and steps."""
    if not runtime.is_chief:
        return
    print(runtime.config.explain())
    print(runtime.describe())
    model.summary()
    print(f"steps per epoch: {FLAGS.steps_per_epoch or tfdist.data.steps_per_epoch(data)}")


if __name__ == "__main__":
    app.run(main)
