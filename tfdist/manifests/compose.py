"""A compose file: each task a container of one machine, to try a cluster out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfdist.cluster.resolvers.base import DEFAULT_PORT
from tfdist.manifests.documents import dump
from tfdist.manifests.job import Job, check_positive, refuse

__all__ = ["ComposeOptions", "render_compose"]


@dataclass(frozen=True)
class ComposeOptions:
    """What the containers are made of.

    Attributes:
        image: the image, which has Python and tfdist.
        gpus: GPUs of each container that trains, each its own.
        volumes: mounts, as HOST_PATH:CONTAINER_PATH.
        workdir: the directory in which the script is started.
    """

    image: str
    gpus: int | None = None
    volumes: tuple[str, ...] = ()
    workdir: str | None = None


def render_compose(job: Job, options: ComposeOptions) -> str:
    """Returns the YAML of the compose file.

    Raises:
        ConfigError: an option can't be used.
    """
    check_positive(options.gpus, "--gpus")
    if not options.image.strip():
        raise refuse("The image is missing", repr(options.image), "--image", "Name an image")
    for volume in options.volumes:
        if ":" not in volume:
            raise refuse(
                "A volume is HOST_PATH:CONTAINER_PATH", repr(volume), "--volume", "Such as .:/work"
            )
    names = [f"{role}-{index}" for role, count in job.roles.items() for index in range(count)]
    services = {name: _service(job, options, names, rank) for rank, name in enumerate(names)}
    return dump([{"name": job.name, "services": services}])


def _service(job: Job, options: ComposeOptions, names: list[str], rank: int) -> dict[str, Any]:
    variables = {
        **job.variables(),
        "TFDIST_HOSTS": ",".join(names),
        "TFDIST_RANK": str(rank),
        "TFDIST_PORT": str(DEFAULT_PORT),
    }
    service: dict[str, Any] = {
        "image": _literal(options.image),
        "hostname": names[rank],
        "command": [_literal(word) for word in job.command],
        "environment": {name: _literal(value) for name, value in variables.items()},
        "init": True,  # so that signals reach the script
    }
    if options.workdir:
        service["working_dir"] = _literal(options.workdir)
    if options.volumes:
        service["volumes"] = [_literal(volume) for volume in options.volumes]
    if options.gpus and names[rank].startswith("worker-"):
        first = int(names[rank].partition("-")[2]) * options.gpus
        device = {
            "driver": "nvidia",
            "device_ids": [str(first + number) for number in range(options.gpus)],
            "capabilities": ["gpu"],
        }
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
        service["shm_size"] = "8gb"  # NCCL needs more than the 64 MB of a container.
    return service


def _literal(text: str) -> str:
    """Compose replaces $NAME in every value; a doubled dollar stays a dollar."""
    return text.replace("$", "$$")
