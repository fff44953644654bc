"""What this machine offers, found without TensorFlow (which would occupy the GPUs)."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The cores this process may use, and the names of the GPUs it may see."""

    cores: int
    gpus: tuple[str, ...] = ()


def detect(environ: Mapping[str, str]) -> Machine:
    """Looks at this machine; `environ` may hide GPUs with CUDA_VISIBLE_DEVICES."""
    return Machine(cores=_cores(), gpus=_gpus(environ, Path("/dev")))


def _cores() -> int:
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    return max(1, min(cores, _quota(Path("/sys/fs/cgroup")) or cores))


def _quota(cgroup: Path) -> int | None:
    """The CPU limit of a container in whole cores (`docker run --cpus=2`), or None."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((cgroup / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            return max(1, math.ceil(int(quota) / int(period)))
    return None


def _gpus(environ: Mapping[str, str], devices: Path) -> tuple[str, ...]:
    """The GPUs as CUDA_VISIBLE_DEVICES names them: numbers or UUIDs."""
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    found = sorted(
        int(match[1])
        for path in devices.glob("nvidia*")
        if (match := re.fullmatch(r"nvidia(\d+)", path.name))
    )
    if not found or listed is None:
        return tuple(map(str, range(len(found))))
    names = []
    for name in listed.split(","):
        # CUDA itself ignores everything from the first name that it does not know.
        if not name.strip() or name.strip().startswith("-"):
            break
        names.append(name.strip())
    return tuple(names)
