"""An sbatch script: one srun, a task per worker."""

from __future__ import annotations

from dataclasses import dataclass

from tfdist.manifests.job import CLUSTER_VARIABLES, Job, check_positive, refuse
from tfdist.manifests.shell import check_directive, exports, words

__all__ = ["SlurmOptions", "render_slurm"]


@dataclass(frozen=True)
class SlurmOptions:
    """What the job asks Slurm for; None leaves it to the cluster's default.

    Attributes:
        nodes: number of nodes.
        gpus_per_task: GPUs of each task, which sees no others.
        cpus_per_task: cores of each task.
        partition, account, time, mem: as sbatch's.
        sbatch: more options of sbatch, such as "--constraint=a100".
        setup: lines of bash to run before, such as "module load cuda".
    """

    nodes: int = 1
    gpus_per_task: int | None = None
    cpus_per_task: int | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    mem: str | None = None
    sbatch: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()


def render_slurm(job: Job, options: SlurmOptions) -> str:
    """Returns the sbatch script.

    Args:
        job: what to run; its tasks are spread evenly over the nodes.
        options: what to ask Slurm for.

    Raises:
        ConfigError: an option can't be used.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _directives(job, options)), ""]
    # No -u: what modules and environments run at their start often fails with it.
    lines += ["set -eo pipefail", ""]
    lines += [
        "# Of the shell that sbatch was called in; they would describe another job.",
        words(["unset", *CLUSTER_VARIABLES]),
        "",
    ]
    lines += [*options.setup, ""] if options.setup else []
    lines += [*exports(job.variables()), ""] if job.variables() else []
    srun = ["srun", "--kill-on-bad-exit=1"]
    if options.cpus_per_task:
        # Since Slurm 22.05 a step no longer takes this over from its job.
        srun.append(f"--cpus-per-task={options.cpus_per_task}")
    lines.append(words([*srun, *job.command]))
    return "\n".join(lines) + "\n"


def _directives(job: Job, options: SlurmOptions) -> list[str]:
    for number, option in (
        (options.nodes, "--nodes"),
        (options.gpus_per_task, "--gpus-per-task"),
        (options.cpus_per_task, "--cpus-per-task"),
    ):
        check_positive(number, option)
    if job.tasks < options.nodes:
        raise refuse(
            "Each node needs at least one task",
            f"{job.tasks} tasks on {options.nodes} nodes",
            "--nodes",
            "Use more --workers, or fewer nodes",
        )
    directives = [
        f"--job-name={job.name}",
        f"--nodes={options.nodes}",
        f"--ntasks={job.tasks}",
    ]
    if job.tasks % options.nodes == 0:
        directives.append(f"--ntasks-per-node={job.tasks // options.nodes}")
    directives.append("--output=%x-%j.log")
    for name in ("gpus_per_task", "cpus_per_task", "partition", "account", "time", "mem"):
        value = getattr(options, name)
        if value is not None:
            option = "--" + name.replace("_", "-")
            directives.append(f"{option}={check_directive(str(value), option)}")
    for option in options.sbatch:
        if not option.startswith("-"):
            raise refuse("An option of sbatch begins with a hyphen", repr(option), "--sbatch")
        directives.append(check_directive(option, "--sbatch"))
    return directives
