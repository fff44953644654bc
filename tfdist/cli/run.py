"""Starts the processes of one script on this machine, with everything they need to find each other.

    tfdist run -n 2 train.py --epochs=5
    tfdist run -np 4 python train.py
    tfdist run -n 2 -m package.train --epochs=5
    tfdist run --workers 2 --ps 1 train.py --epochs=5

Everything after the script is the script's. The workers belong to the job: when one fails, or the
job ends, whatever is left of it is ended too. The exit code is that of the worker that failed
first (128 + n if signal n killed it).

With --ps there is a chief besides, whose program the job is: the exit code is the chief's. A worker
that dies does not end such a job.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tfdist.errors import LaunchError, explain

NAME = "run"
HELP = "start the local processes of a script"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `tfdist run`."""
    parser.usage = (
        "tfdist run -n N | --workers N --ps M [options] [python] SCRIPT ARGS... | -m MODULE ARGS..."
    )
    parser.add_argument(
        "-n", "-np", dest="num_workers", type=int, metavar="N", help="how many workers to start"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="workers of a chief, beside parameter servers"
    )
    parser.add_argument("--ps", type=int, metavar="M", help="parameter servers")
    parser.add_argument(
        "--evaluator", action="store_true", help="also start an evaluator beside the chief"
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="with --ps: start a worker that died again, at most K times over all (default: 0)",
    )
    parser.add_argument(
        "--devices-per-worker",
        type=int,
        metavar="D",
        help="GPUs of each worker, or logical CPU devices on a machine without GPUs "
        "(default: the GPUs are shared out evenly)",
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="also keep each process's output there, as rank-N.log or ROLE-N.log",
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

    workers, ps = _processes(arguments)
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
        num_workers=workers,
        num_ps=ps,
        evaluator=arguments.evaluator,
        max_restarts=arguments.max_restarts,
        devices_per_worker=arguments.devices_per_worker,
        log_dir=arguments.log_dir,
        start_timeout=arguments.start_timeout,
        prefix=arguments.prefix,
        grace=arguments.grace,
        env=parse_assignments(arguments.env),
    )
    return launch(spec)


def _processes(arguments: argparse.Namespace) -> tuple[int, int]:
    """The numbers of workers and parameter servers that the options ask for.

    Raises:
        LaunchError: they ask for none, or for both kinds of job.
    """
    plain, workers, ps = arguments.num_workers, arguments.workers, arguments.ps
    if plain is not None and (workers is not None or ps is not None):
        other = f"--ps {ps}" if ps is not None else f"--workers {workers}"
        raise LaunchError(
            explain(
                "-n starts workers that train alike; beside parameter servers they are --workers",
                received=f"-n {plain} {other}",
                fix=f"Write --workers {workers or plain} --ps {ps or 1}, or leave {other} out",
            )
        )
    if plain is None and workers is None and ps is None:
        raise LaunchError(
            explain(
                "The number of workers is missing",
                fix="Give it before the script: tfdist run -n 2 train.py",
            )
        )
    if plain is not None:
        return plain, 0
    if not workers or not ps:
        raise LaunchError(
            explain(
                "A chief needs both workers and parameter servers",
                received=f"--workers {workers or 0} --ps {ps or 0}",
                fix=f"Write --workers {workers or 2} --ps {ps or 1}; or -n {workers or 2} for workers "
                "alone",
            )
        )
    return workers, ps
