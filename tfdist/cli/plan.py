"""Shows how a model would be split into the stages of a pipeline; trains nothing.

    tfdist plan resnet50 --stages=4 --batch-size=256 --microbatches=16
    tfdist plan gpt2_xl --stages=8 --balance=flops --input-shape=1024 --memory-limit=16GiB
    tfdist plan model.keras --stages=2 --draw=schedule.svg --steps
    tfdist plan train.py:build_model --stages=2

MODEL is a saved .keras file, FILE.py:FUNCTION that returns a model, or the name of a reference model.
The weights of reference models are not allocated: a model may be planned that fits on no device here.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from tfdist.errors import ConfigError, PartitionError, explain

NAME = "plan"
HELP = "show how a model would be split into stages"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `tfdist plan`."""
    parser.add_argument("model", metavar="MODEL", help="a .keras file, FILE.py:FUNCTION, or a name")
    parser.add_argument("--stages", type=int, required=True, metavar="S", help="number of devices")
    parser.add_argument(
        "--microbatches", type=int, metavar="M", help="parts of a batch (default: 4 x stages)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="B", help="rows of a batch (default: 32)"
    )
    parser.add_argument(
        "--balance",
        default="time",
        metavar="WHAT",
        help="time (measured here; the default), flops, parameters; or names of the layers that the "
        "stages but the first begin with, or counts of operations, separated by commas",
    )
    parser.add_argument(
        "--schedule", default="1f1b", metavar="NAME", help="1f1b (default), gpipe, interleaved"
    )
    parser.add_argument(
        "--chunks", type=int, default=1, metavar="V", help="parts on each stage, for interleaved"
    )
    parser.add_argument(
        "--recompute", default="none", metavar="WHAT", help="none (default), full, except_last"
    )
    parser.add_argument(
        "--shared",
        default="auto",
        metavar="HOW",
        help="weights of several layers: auto (default), together, tied",
    )
    parser.add_argument("--memory-limit", metavar="BYTES", help="of a device, such as 16GiB")
    parser.add_argument(
        "--optimizer-slots",
        type=int,
        default=2,
        metavar="N",
        help="variables that the optimizer keeps for each weight (default: 2, as Adam)",
    )
    parser.add_argument(
        "--input-shape",
        metavar="AxBxC",
        help="shape of one row: of a reference model's images, or of inputs of unknown size",
    )
    parser.add_argument(
        "--draw", metavar="FILE", help="draw the schedule into an .svg or .png file"
    )
    parser.add_argument("--steps", action="store_true", help="print the steps of each stage, too")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the table, and draws the picture.

    Raises:
        TfdistError: there is no such model, or it can't be split as asked.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is loaded
    from tfdist.config.groups import Pipeline
    from tfdist.pipeline import split

    # The settings are read as create() reads them, so that both say the same of a slip.
    limit = arguments.memory_limit
    settings = Pipeline(
        stages=arguments.stages,
        schedule=arguments.schedule,
        chunks=arguments.chunks,
        balance=arguments.balance,
        recompute=arguments.recompute,
        memory_limit=limit,
    )
    shape = _shape(arguments.input_shape)
    model = _model(arguments.model, shape)
    partition = split(
        model,
        settings.stages,
        balance=settings.balance,
        microbatches=arguments.microbatches,
        batch_size=arguments.batch_size,
        schedule=settings.schedule,
        chunks=settings.chunks,
        memory_limit=settings.memory_limit,
        recompute=settings.recompute,
        shared=arguments.shared,
        optimizer_slots=arguments.optimizer_slots,
        input_shapes=_unknown_inputs(model, shape),
    )
    print(partition)
    if arguments.steps:
        print(f"\n{partition.schedule.grid()}")
    if arguments.draw:
        partition.draw(arguments.draw)
        print(f"\nDrawn: {arguments.draw}")
    return 0


def _shape(text: str | None) -> tuple[int, ...] | None:
    """Reads a shape such as 32x32x3.

    Raises:
        ConfigError: the text is no shape.
    """
    if text is None:
        return None
    sizes = text.lower().split("x")
    if not all(size.isdigit() and int(size) for size in sizes):
        raise ConfigError(
            explain(
                "A shape is positive numbers with x between them",
                received=text,
                source="--input-shape",
                fix="Such as 224x224x3, or 1024 for a sequence",
            )
        )
    return tuple(map(int, sizes))


def _model(name: str, shape: tuple[int, ...] | None) -> Any:
    """Loads or builds the model.

    Raises:
        ConfigError: there is none of this name.
    """
    path, _, function = name.rpartition(":")
    if name.endswith(".keras"):
        return _load(name)
    if path.endswith(".py"):
        return _call(path, function)
    return _reference(name, shape)


def _load(path: str) -> Any:
    import keras

    try:
        return keras.saving.load_model(path, compile=False)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            explain(
                f"The model can't be loaded: {reason}",
                received=path,
                fix="Give a file that model.save wrote; a model with layers of your own needs "
                "FILE.py:FUNCTION instead",
            )
        ) from None


def _call(path: str, function: str) -> Any:
    import runpy
    import sys

    if not os.path.isfile(path):
        raise ConfigError(explain("There is no such file", received=path, fix="Check the path"))
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    build = runpy.run_path(path).get(function)
    if not callable(build):
        raise ConfigError(
            explain(
                f"{path} has no function {function!r}",
                received=f"{path}:{function}",
                fix="Give the name of a function without arguments that returns a model",
            )
        )
    return build()


def _reference(name: str, shape: tuple[int, ...] | None) -> Any:
    import keras

    from tfdist import models
    from tfdist.config.fields import did_you_mean
    from tfdist.models import transformer

    families = {
        "gpt": (transformer.GPT, transformer.gpt),
        "bert": (transformer.BERT, transformer.bert),
    }
    builders: dict[str, Any] = {}
    for family, (sizes, build) in families.items():
        for size in sizes:
            full = size if size.startswith(family) else f"{family}_{size}"
            builders[full] = lambda build=build, size=size: build(size)
    for known in models.names():
        builders[known] = lambda known=known: models.get(known)(*([shape] if shape else []))
    if name not in builders:
        raise ConfigError(
            explain(
                f"Unknown model {name!r}",
                received=name,
                fix=did_you_mean(name, sorted(builders))
                + "; or a .keras file, or FILE.py:FUNCTION",
            )
        )
    with keras.StatelessScope(initialize_variables=False):
        return builders[name]()


def _unknown_inputs(model: Any, shape: tuple[int, ...] | None) -> dict[str, tuple[int, ...]]:
    """Gives the shape to every input whose size is not known."""
    if shape is None:
        return {}
    inputs = [x for x in model.inputs if any(size is None for size in x.shape[1:])]
    for symbol in inputs:
        if len(symbol.shape) - 1 != len(shape):
            raise PartitionError(
                explain(
                    "The input's shape does not fit",
                    received=f"{'x'.join(map(str, shape))} for {symbol.name!r}, {symbol.shape[1:]}",
                    source="--input-shape",
                    fix="Give the shape of one row, without the batch",
                )
            )
    return {symbol.name: shape for symbol in inputs}
