"""A script that queues for a TPU slice, waits for it, and trains on it from its first host."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from tfdist.manifests.job import Job, refuse
from tfdist.manifests.shell import words

__all__ = ["TpuOptions", "is_slice_of_hosts", "render_tpu"]

_TYPE = re.compile(r"v\d+[a-z]*-(\d+)")
_ONE_HOST = 8  # the largest number in the name of a type that is a single host


@dataclass(frozen=True)
class TpuOptions:
    """The slice.

    Attributes:
        accelerator_type: such as "v5litepod-8".
        zone: such as "us-west4-a".
        runtime_version: the image of the TPU hosts, such as "tpu-vm-tf-2.19.0-pjrt"; a slice of
            several hosts needs its "-pod-" variant.
        project: None means gcloud's default.
        spot: take a slice that may be taken back, for less.
        source: a local folder to copy to the hosts; the script runs in it.
        setup: a command to run on every host first, such as "pip install -r requirements.txt".
    """

    accelerator_type: str
    zone: str
    runtime_version: str
    project: str | None = None
    spot: bool = False
    source: str | None = None
    setup: str | None = None


def is_slice_of_hosts(accelerator_type: str) -> bool:
    """Whether the type has several hosts.

    Raises:
        ConfigError: it is no type.
    """
    match = _TYPE.fullmatch(accelerator_type)
    if match is None:
        raise refuse(
            "A TPU type is a version and a number",
            repr(accelerator_type),
            "--accelerator-type",
            "Such as v5litepod-8, v4-32 or v6e-16",
        )
    return int(match[1]) > _ONE_HOST


def render_tpu(job: Job, options: TpuOptions) -> str:
    """Returns the bash script.

    Raises:
        ConfigError: an option can't be used, or the job has several tasks.
    """
    several = is_slice_of_hosts(options.accelerator_type)
    if job.tasks > 1:
        raise refuse(
            "One process drives all of a TPU slice", f"{job.tasks} tasks", "--workers", "Use one"
        )
    version = options.runtime_version
    if several and version.startswith("tpu-vm-tf-") and "-pod" not in version:
        raise refuse(
            "A slice of several hosts needs the pod variant of the runtime",
            f"{options.accelerator_type}, {version}",
            "--runtime-version",
            "Such as tpu-vm-tf-2.19.0-pod-pjrt",
        )
    where = [f"--zone={options.zone}"]
    where += [f"--project={options.project}"] if options.project else []
    create = [
        *("gcloud", "compute", "tpus", "queued-resources", "create", job.name),
        f"--node-id={job.name}",
        *where,
        f"--accelerator-type={options.accelerator_type}",
        f"--runtime-version={version}",
        *(["--spot"] if options.spot else []),
    ]
    describe = [
        *("gcloud", "compute", "tpus", "queued-resources", "describe", job.name),
        *where,
        "--format=value(state.state)",
    ]
    lines = [
        "#!/bin/bash",
        "# Give the slice back with:",
        f"#   {words(_delete(job, where))}",
        "set -euo pipefail",
        "",
        words(create),
        "while true; do",
        f"    state=$({words(describe)})",
        '    echo "$state"',
        '    case "$state" in',
        "        ACTIVE) break ;;",
        "        FAILED | SUSPENDED) exit 1 ;;",
        "    esac",
        "    sleep 30",
        "done",
        "",
        *_prepare(job, options, where),
        _on_host(job, where, "0", _remote(job, options, several)),
    ]
    return "\n".join(lines) + "\n"


def _delete(job: Job, where: list[str]) -> list[str]:
    delete = ["gcloud", "compute", "tpus", "queued-resources", "delete", job.name]
    return [*delete, *where, "--force", "--quiet"]


def _prepare(job: Job, options: TpuOptions, where: list[str]) -> list[str]:
    lines = []
    if options.source:
        copy = ["gcloud", "compute", "tpus", "tpu-vm", "scp", "--recurse", "--worker=all", *where]
        lines.append(words([*copy, options.source, f"{job.name}:{job.name}"]))
    if options.setup:
        setup = f"cd {job.name} && {options.setup}" if options.source else options.setup
        lines.append(_on_host(job, where, "all", setup))
    return lines


def _remote(job: Job, options: TpuOptions, several: bool) -> str:
    """The command on the first host, as its shell reads it."""
    variables = job.variables()
    if several:  # TensorFlow then drives the servers of all hosts, by the slice's name.
        variables |= {"TPU_NAME": job.name, "TPU_LOAD_LIBRARY": "0"}
    settings = [f"{name}={value}" for name, value in variables.items()]
    command = shlex.join(["env", *settings, *job.command] if settings else list(job.command))
    return f"cd {job.name} && {command}" if options.source else command


def _on_host(job: Job, where: list[str], worker: str, command: str) -> str:
    ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", job.name, *where, f"--worker={worker}"]
    return words([*ssh, f"--command={command}"])
