r"""Writes what a cluster's scheduler needs to run a script: nothing to be written by hand.

    tfdist manifest slurm --nodes=4 --workers=4 --gpus-per-task=8 --config=job.yaml train.py
    tfdist manifest k8s --workers=4 --gpus=8 --image=registry/train:1 train.py --epochs=5
    tfdist manifest compose --workers=2 --image=train --volume=.:/work --workdir=/work train.py
    tfdist manifest tpu --accelerator-type=v5litepod-8 --zone=us-west4-a \
        --runtime-version=tpu-vm-tf-2.19.0-pjrt train.py

Everything after the script is the script's. The settings of --config travel in the manifest, as
TFDIST_ variables; the script finds them, and the cluster, when it calls tfdist.create().
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tfdist.errors import ConfigError, explain

if TYPE_CHECKING:
    from tfdist.manifests import Job

NAME = "manifest"
HELP = "write what Slurm, Kubernetes, Docker Compose or Cloud TPU needs to run a script"


class _Kind(NamedTuple):
    """A scheduler: its help, the manifest's file name and the command that submits it."""

    help: str
    file: str
    submit: str


_KINDS = {
    "slurm": _Kind("an sbatch script", "{}.sbatch", "sbatch {}"),
    "k8s": _Kind("an Indexed Job and its Service, or a JobSet", "{}.yaml", "kubectl apply -f {}"),
    "compose": _Kind("a compose file", "{}.compose.yaml", "docker compose -f {} up"),
    "tpu": _Kind("a script that queues for a TPU slice", "{}-tpu.sh", "bash {}"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the kinds of manifest and their options."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", title="kinds", required=True)
    add = {"slurm": _add_slurm, "k8s": _add_k8s, "compose": _add_compose, "tpu": _add_tpu}
    for name, kind in _KINDS.items():
        child = kinds.add_parser(name, help=kind.help, allow_abbrev=False)
        child.usage = f"tfdist manifest {name} [options] SCRIPT ARGS..."
        _add_common(child, tasks=name != "tpu")
        add[name](child)
        child.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS...")


def _add_common(parser: argparse.ArgumentParser, tasks: bool) -> None:
    if tasks:
        parser.add_argument(
            "--workers", type=int, default=1, metavar="N", help="tasks that train (default: 1)"
        )
        parser.add_argument(
            "--ps", type=int, default=0, metavar="N", help="parameter servers; adds a chief too"
        )
    parser.add_argument("--config", metavar="FILE", help="settings, which the manifest then holds")
    parser.add_argument("--name", default="", help="of the job (default: the script's)")
    parser.add_argument("--python", default="python", help="the interpreter (default: python)")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for all tasks"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write it")
    parser.add_argument("--force", action="store_true", help="write over an existing file")
    parser.add_argument("--dry-run", action="store_true", help="print it instead of writing it")


def _add_slurm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes (default: 1)")
    parser.add_argument("--gpus-per-task", type=int, metavar="N", help="GPUs of each task")
    parser.add_argument("--cpus-per-task", type=int, metavar="N", help="cores of each task")
    for option in ("partition", "account", "time", "mem"):
        parser.add_argument(f"--{option}", help="as sbatch's")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="another option of sbatch"
    )
    parser.add_argument(
        "--setup", action="append", default=[], metavar="LINE", help="a line of bash to run before"
    )


def _add_k8s(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", required=True, help="has Python, tfdist and the script")
    parser.add_argument("--namespace", help="default: kubectl's")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of each worker")
    parser.add_argument("--cpu", help="cores that each pod requests")
    parser.add_argument("--memory", help="memory that each pod requests, such as 16Gi")
    parser.add_argument("--claim", metavar="NAME:PATH", help="a persistent volume claim to mount")
    parser.add_argument("--jobset", action="store_true", help="a JobSet where a Job would do too")


def _add_compose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", required=True, help="has Python and tfdist")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of each worker, its own")
    parser.add_argument(
        "--volume", action="append", default=[], metavar="FROM:TO", help="a folder to mount"
    )
    parser.add_argument("--workdir", metavar="DIR", help="where the script is started")


def _add_tpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accelerator-type", required=True, help="such as v5litepod-8")
    parser.add_argument("--zone", required=True, help="such as us-west4-a")
    parser.add_argument(
        "--runtime-version", required=True, help="such as tpu-vm-tf-2.19.0-pjrt, or -pod-pjrt"
    )
    parser.add_argument("--project", help="default: gcloud's")
    parser.add_argument("--spot", action="store_true", help="a slice that may be taken back")
    parser.add_argument("--source", metavar="DIR", help="a local folder to copy and to start in")
    parser.add_argument("--setup", metavar="COMMAND", help="run on every host before")


def execute(arguments: argparse.Namespace) -> int:
    """Writes or prints the manifest; returns the exit code.

    Raises:
        ConfigError: an option or a setting can't be used, or the file is there already.
    """
    job = _job(arguments)
    render = {"slurm": _slurm, "k8s": _k8s, "compose": _compose, "tpu": _tpu}[arguments.kind]
    text = render(job, arguments)
    if arguments.dry_run:
        print(text, end="")
        return 0
    kind = _KINDS[arguments.kind]
    path = arguments.output or Path(kind.file.format(job.name))
    _write(path, text, arguments.force)
    print(f"{path} written; start it with: {kind.submit.format(path)}", file=sys.stderr)
    return 0


def _job(arguments: argparse.Namespace) -> Job:
    from tfdist.config import Config
    from tfdist.launcher.spec import parse_assignments
    from tfdist.manifests import Job

    words = arguments.program
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise ConfigError(
            explain(
                "There is no script to run",
                fix=f"Name it at the end: tfdist manifest {arguments.kind} ... train.py",
            )
        )
    return Job(
        script=words[0],
        arguments=tuple(words[1:]),
        config=Config.load(arguments.config) if arguments.config else Config(),
        workers=getattr(arguments, "workers", 1),
        ps=getattr(arguments, "ps", 0),
        name=arguments.name,
        env=parse_assignments(arguments.env),
        python=arguments.python,
    )


def _slurm(job: Job, given: argparse.Namespace) -> str:
    from tfdist.manifests import SlurmOptions, render_slurm

    return _render(render_slurm, job, SlurmOptions, given)


def _k8s(job: Job, given: argparse.Namespace) -> str:
    from tfdist.manifests import KubernetesOptions, render_kubernetes

    return _render(render_kubernetes, job, KubernetesOptions, given)


def _compose(job: Job, given: argparse.Namespace) -> str:
    from tfdist.manifests import ComposeOptions, render_compose

    given.volumes = given.volume
    return _render(render_compose, job, ComposeOptions, given)


def _tpu(job: Job, given: argparse.Namespace) -> str:
    from tfdist.manifests import TpuOptions, render_tpu

    return _render(render_tpu, job, TpuOptions, given)


def _render(
    render: Callable[[Job, Any], str], job: Job, options: type, given: argparse.Namespace
) -> str:
    """Renders with the command line's values for the fields of the options' class."""
    import dataclasses

    values = {field.name: getattr(given, field.name) for field in dataclasses.fields(options)}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return render(job, options(**{**values, **lists}))


def _write(path: Path, text: str, force: bool) -> None:
    try:
        with path.open("w" if force else "x") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            explain(
                "The file is there already",
                received=str(path),
                fix="Add --force to write over it, or --output=FILE",
            )
        ) from None
    except OSError as error:
        raise ConfigError(
            explain(
                f"The manifest can't be written: {error.strerror}",
                received=str(path),
                source="--output",
                fix="Name a file in a folder that you can write to",
            )
        ) from None
