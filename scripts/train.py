"""Trains any model on any data set under any strategy; the same command on every worker.

    tfdist run -n 2 scripts/train.py --strategy=multi_worker --dataset=digits --epochs=5
    python scripts/train.py --strategy=mirrored --devices=cpu:2 --model=mlp --dry_run

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

flags.DEFINE_string("model", "simple_cnn", "name of a reference model: see tfdist.models.names()")
flags.DEFINE_integer("epochs", 10, "passes over the training data", lower_bound=1)
flags.DEFINE_integer(
    "steps_per_epoch",
    None,
    "steps of an epoch, through the data as often as need be; None: once through it",
)
flags.DEFINE_string("optimizer", "adam", "name of a Keras optimizer")
flags.DEFINE_float("learning_rate", 3e-3, "learning rate", lower_bound=0.0)
flags.DEFINE_bool("jit_compile", False, "compile each replica's forward and backward pass by XLA")
flags.DEFINE_integer("steps_per_execution", 1, "steps of one call into TensorFlow", lower_bound=1)
flags.DEFINE_string("train_split", "train", "which part of the data set to train on")
flags.DEFINE_string("test_split", "test", "which part of the data set to test on")
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
                fix="Use a path such as runs/model.keras",
            )
        )
    build = tfdist.models.get(FLAGS.model)
    runtime = tfdist.create(tfdist.flags.config_from_flags())
    import keras

    data = runtime.dataset(
        split=FLAGS.train_split,
        training=True,
        repeat=FLAGS.steps_per_epoch is not None,
        **PAIRS,
    )
    held_out = runtime.dataset(split=FLAGS.test_split, training=False, **PAIRS)
    with runtime.scope():
        model = build_model(build, image_shape(data), num_classes(runtime))
        model.compile(
            optimizer(FLAGS.optimizer, FLAGS.learning_rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=FLAGS.jit_compile,
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
    loss, accuracy = model.evaluate(held_out, verbose=0)
    if FLAGS.save:
        model.save(FLAGS.save)  # on every worker: the chief writes
    if runtime.is_chief:
        print(f"test loss: {loss:.4f}\ntest accuracy: {accuracy:.4f}", flush=True)
        if FLAGS.save:
            print(f"saved {FLAGS.save}", flush=True)
    return 0


def scale(image: Any, label: Any) -> tuple[Any, Any]:
    """Turns integer pixels, of 0 to 255, into 0 to 1; leaves others as they are."""
    import tensorflow as tf

    highest = image.dtype.max if image.dtype.is_integer else 1.0
    return tf.cast(image, tf.float32) / highest, label


PAIRS: dict[str, Any] = {"as_supervised": True, "map_fn": scale}


def image_shape(data: Any) -> tuple[int, ...]:
    """Returns the shape of one example."""
    shape = data.element_spec[0].shape[1:]
    if shape.rank != 3 or not shape.is_fully_defined():
        raise tfdist.errors.DataError(
            tfdist.errors.explain(
                "The reference models need images of one size",
                received=f"examples of shape {shape}",
                source="--dataset",
                fix="Use a data set such as digits, mnist, fashion_mnist or cifar10",
            )
        )
    return tuple(shape)


def build_model(build: Any, shape: tuple[int, ...], classes: int) -> Any:
    """Builds the model, or says why the data does not fit it."""
    try:
        return build(shape, classes)
    except ValueError as error:
        raise tfdist.errors.ConfigError(
            tfdist.errors.explain(
                f"The model {FLAGS.model!r} can't be built for this data: {error}",
                received=f"images of shape {shape}",
                source="--model and --dataset",
                fix="Use another model or data set",
            )
        ) from error


def optimizer(name: str, learning_rate: float) -> Any:
    """Returns a Keras optimizer by its name."""
    import keras

    try:
        return keras.optimizers.get(
            {"class_name": name, "config": {"learning_rate": learning_rate}}
        )
    except ValueError:
        raise tfdist.errors.ConfigError(
            tfdist.errors.explain(
                "Keras has no such optimizer",
                received=name,
                source="--optimizer",
                fix="Such as adam, adamw, sgd, rmsprop, lion",
            )
        ) from None


def num_classes(runtime: tfdist.Runtime) -> int:
    """Returns the number of labels that the data set's builder tells of."""
    return tfdist.data.num_classes(runtime.config.data.dataset, runtime.config.data.data_dir)


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
