"""Starts N local workers of one script, with everything they need to find each other.

    tfdist run -n 2 train.py --epochs=5
    tfdist run -np 4 python train.py
    tfdist run -n 2 -m package.train --epochs=5

Everything after the script is the script's. The workers belong to the job: when one fails, or the
job ends, whatever is left of it is ended too. The exit code is that of the worker that failed
first (128 + n if signal n killed it).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tfdist.errors import LaunchError, explain

NAME = "run"
HELP = "start N local workers of a script"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `tfdist run`."""
    parser.usage = "tfdist run -n N [options] [python] SCRIPT ARGS... | -m MODULE ARGS..."
    parser.add_argument(
        "-n", "-np", dest="num_workers", type=int, metavar="N", help="how many workers to start"
    )
    parser.add_argument(
        "--devices-per-worker",
        type=int,
        metavar="D",
        help="GPUs of each worker, or logical CPU devices on a machine without GPUs "
        "(default: the GPUs are shared out evenly)",
    )
    parser.add_argument(
        "--log-dir", type=Path, metavar="DIR", help="also keep each worker's output as rank-N.log"
    )
    parser.add_argument(
        "--start-timeout",
        type=float,
        metavar="S",
        help="seconds that a worker waits for the others at the start (default: 300)",
    )
    parser.add_argument(
        "--no-prefix",
        dest="prefix",
        action="store_false",
        help="don't start each line of output with the rank of its worker",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds between asking a worker to end and killing it (default: 5)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        help="an environment variable for every worker; may be given several times",
    )
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module, as python -m does",
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def execute(arguments: argparse.Namespace) -> int:
    """Runs the job; returns its exit code.

    Raises:
        LaunchError: if the arguments don't describe a job that can be started.
    """
    if os.name != "posix":
        raise LaunchError(
            explain(
                "tfdist run needs a POSIX system",
                received=os.name,
                fix="Use Linux, macOS, or WSL",
            )
        )
    from tfdist.launcher import LaunchSpec, launch, resolve_command
    from tfdist.launcher.spec import parse_assignments

    if arguments.num_workers is None:
        raise LaunchError(
            explain(
                "The number of workers is missing",
                fix="Give it before the script: tfdist run -n 2 train.py",
            )
        )
    module, words = None, arguments.program
    if words[:1] == ["--"]:  # the end of our own options, for who likes to mark it
        del words[0]
    if arguments.module is not None:
        if not arguments.module:
            raise LaunchError(
                explain("-m needs the name of a module", fix="Write -m package.train")
            )
        module, *words = arguments.module
    spec = LaunchSpec(
        command=resolve_command(words, module),
        num_workers=arguments.num_workers,
        devices_per_worker=arguments.devices_per_worker,
        log_dir=arguments.log_dir,
        start_timeout=arguments.start_timeout,
        prefix=arguments.prefix,
        grace=arguments.grace,
        env=parse_assignments(arguments.env),
    )
    return launch(spec)
