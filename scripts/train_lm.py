"""Trains a GPT-style language model on text, byte by byte, under any strategy.

    python scripts/train_lm.py --strategy=single --epochs=3
    tfdist run -n 2 scripts/train_lm.py --strategy=multi_worker --text=war.txt,peace.txt

Without --text it reads the English text of Python's own help. Perplexity is per byte: 256 for a model
that knows nothing, 1 for one that knows every next byte.
Every field of tfdist's Config is a flag too; `--config=FILE` reads them from a file.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging

import tfdist

FLAGS = flags.FLAGS

flags.DEFINE_string("size", "tiny", "tiny, mini, gpt2, gpt2_medium, gpt2_large or gpt2_xl")
flags.DEFINE_integer("context", None, "bytes that the model sees; None: the size's own")
flags.DEFINE_float("dropout", 0.0, "share that is dropped in training", 0.0, 0.9)
flags.DEFINE_list("text", None, "text files, with commas between; None: Python's own help")
flags.DEFINE_integer("epochs", 3, "passes over the text", lower_bound=1)
flags.DEFINE_integer(
    "steps_per_epoch",
    None,
    "steps of an epoch, through the text as often as need be; None: once through it",
)
flags.DEFINE_float("learning_rate", 3e-3, "the highest learning rate of AdamW", lower_bound=0.0)
flags.DEFINE_bool("jit_compile", False, "compile each replica's forward and backward pass by XLA")
flags.DEFINE_integer("steps_per_execution", 1, "steps of one call into TensorFlow", lower_bound=1)
flags.DEFINE_string("prompt", "The ", "what the sample begins with")
flags.DEFINE_integer("sample", 200, "bytes of text to generate at the end", lower_bound=0)
flags.DEFINE_float("temperature", 0.8, "of the sample; 0: always the likeliest byte", 0.0)
flags.DEFINE_string("save", None, "where to save the trained model, a path ending in .keras")
flags.DEFINE_bool("dry_run", False, "print what would be done, train nothing")
tfdist.flags.define()


def main(argv: Sequence[str]) -> int:
    """Trains, tests, saves, samples; returns the exit code."""
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
        TfdistError: if a flag, the cluster or the text is wrong.
    """
    check(argv)
    runtime = tfdist.create(tfdist.flags.config_from_flags())
    import keras

    from tfdist.models import transformer

    changes = {} if FLAGS.context is None else {"context": FLAGS.context}
    with runtime.scope():
        model = transformer.gpt(FLAGS.size, dropout=FLAGS.dropout, vocabulary=256, **changes)
    context = model.get_layer("positions").context
    data = rows(runtime, "train", context, repeat=FLAGS.steps_per_epoch is not None)
    held_out = rows(runtime, "test", context)
    steps = FLAGS.epochs * (FLAGS.steps_per_epoch or tfdist.data.steps_per_epoch(data))
    with runtime.scope():
        model.compile(
            optimizer(steps),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=FLAGS.jit_compile,
            steps_per_execution=FLAGS.steps_per_execution,
        )
    if FLAGS.dry_run:
        describe(runtime, model, steps)
        return 0
    if FLAGS.save and runtime.is_chief:
        make_folder(os.path.dirname(FLAGS.save))  # now, rather than find out after training
    model.fit(
        data,
        epochs=FLAGS.epochs,
        steps_per_epoch=FLAGS.steps_per_epoch,
        shuffle=False,  # the data set does it
        validation_data=held_out,
        callbacks=[*runtime.callbacks(), perplexity_callback(runtime)],
    )
    loss = model.evaluate(held_out, verbose=0)
    if FLAGS.save:
        model.save(FLAGS.save)  # on every worker: the chief writes
    if runtime.is_chief:
        print(f"test loss: {loss:.4f}\ntest perplexity: {math.exp(loss):.3f}", flush=True)
        if FLAGS.save:
            print(f"saved {FLAGS.save}", flush=True)
        if FLAGS.sample:
            print(f"sample: {sample(runtime, model, context)}", flush=True)
    return 0


def check(argv: Sequence[str]) -> None:
    """Refuses stray arguments, and values that would be found wrong only after training."""
    explain = tfdist.errors.explain
    if len(argv) > 1:
        raise tfdist.errors.ConfigError(
            explain(
                "This script takes flags only",
                received=" ".join(argv[1:]),
                source="the command line",
                fix="Write --name=value; --help lists the flags",
            )
        )
    if FLAGS.save and not FLAGS.save.endswith(".keras"):
        raise tfdist.errors.ConfigError(
            explain(
                "A model is saved to a path that ends in .keras",
                received=FLAGS.save,
                source="--save",
                fix="Use a path such as runs/gpt.keras",
            )
        )
    if FLAGS.sample and not FLAGS.prompt:
        raise tfdist.errors.ConfigError(
            explain(
                "A sample has to begin with something",
                received="an empty prompt",
                source="--prompt",
                fix="Give a byte or more, or --sample=0",
            )
        )


def rows(runtime: tfdist.Runtime, split: str, context: int, **options: Any) -> Any:
    """The rows of the text that this worker reads, in pairs of bytes seen and bytes to come."""
    text = tfdist.data.text_rows(FLAGS.text, length=context, split=split)
    return runtime.dataset(text, split=split, map_fn=tfdist.data.next_byte, **options)


def optimizer(steps: int) -> Any:
    """AdamW, its rate rising for a twentieth of the steps and falling along a cosine to a tenth."""
    import keras

    warmup = max(steps // 20, 1)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0,
        max(steps - warmup, 1),
        alpha=0.1,
        warmup_target=FLAGS.learning_rate,
        warmup_steps=warmup,
    )
    return keras.optimizers.AdamW(schedule, weight_decay=0.01, beta_2=0.99, global_clipnorm=1.0)


def perplexity_callback(runtime: tfdist.Runtime) -> Any:
    """Prints the perplexity of the held-out text after each epoch."""
    import keras

    def report(epoch: int, logs: dict[str, float]) -> None:
        if runtime.is_chief:
            print(f"epoch {epoch + 1}: perplexity {math.exp(logs['val_loss']):.3f}", flush=True)

    return keras.callbacks.LambdaCallback(on_epoch_end=report)


def sample(runtime: tfdist.Runtime, model: Any, context: int) -> str:
    """Text that the model goes on with."""
    import numpy as np

    from tfdist.models import transformer

    prompt = np.frombuffer(FLAGS.prompt.encode(), np.uint8)
    tokens = transformer.generate(
        model,
        prompt,
        FLAGS.sample,
        context=context,
        temperature=FLAGS.temperature,
        seed=runtime.config.seed,
    )
    return tokens.astype(np.uint8).tobytes().decode(errors="replace")


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


def describe(runtime: tfdist.Runtime, model: Any, steps: int) -> None:
    """Prints settings, cluster, model and steps."""
    if not runtime.is_chief:
        return
    print(runtime.config.explain())
    print(runtime.describe())
    model.summary()
    print(f"steps: {steps}")


if __name__ == "__main__":
    app.run(main)
