"""Divides the cores of a host among its workers: threads of TensorFlow, and NUMA nodes.

one worker on the host        TensorFlow's own choice: a thread for each core
bound by a scheduler          its cores are its own: a thread for each
W workers, nobody bound them  cores / W threads for each; where W divides evenly over the NUMA
                              nodes, or they over W, each worker also stays on its own nodes
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster import resolvers
from tfdist.launcher import machine

__all__ = ["Share", "apply", "numa_nodes", "parse_cpus", "share"]

logger = logging.getLogger(__name__)

# Fewer than two would let one blocking operation (a py_function) stop all others.
_LEAST_INTER_OP = 2
_SYSFS = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class Share:
    """What a worker gets of its host.

    Attributes:
        threads: threads of one operation, and of operations side by side.
        cpus: the cores to stay on; None leaves that to the system.
        why: how it was decided, for the log.
    """

    threads: int
    cpus: tuple[int, ...] | None
    why: str


def share(
    allowed: Iterable[int],
    *,
    cores: int,
    nodes: Sequence[Iterable[int]] = (),
    workers: int = 1,
    local_rank: int | None = None,
    bound: bool = False,
) -> Share | None:
    """Decides what a worker gets. Pure: nothing is asked or set.

    Args:
        allowed: the cores that the process may run on.
        cores: how many of them it may keep busy, by a container's limit.
        nodes: the cores of each NUMA node.
        workers: workers on this host.
        local_rank: this worker's number among them; None when it isn't known.
        bound: whether a scheduler has given this process cores of its own.

    Returns:
        The share; None when TensorFlow's own choice is right.
    """
    own = tuple(sorted(allowed))
    if workers <= 1:
        return None
    if bound:
        return Share(len(own), None, f"{len(own)} cores of its own, by the scheduler")
    threads = max(1, min(cores, len(own)) // workers)
    why = f"{min(cores, len(own))} cores / {workers} workers on this host"
    if local_rank is None or local_rank >= workers:
        return Share(threads, None, why)
    groups = [group for group in (sorted(set(node) & set(own)) for node in nodes) if group]
    if len(groups) < 2 or sum(map(len, groups)) != len(own):
        return Share(threads, None, why)
    if workers % len(groups) == 0:
        each = workers // len(groups)
        chosen = [local_rank // each]
    elif len(groups) % workers == 0:
        each = len(groups) // workers
        chosen = list(range(local_rank * each, (local_rank + 1) * each))
    else:
        return Share(threads, None, why)
    cpus = tuple(sorted(cpu for number in chosen for cpu in groups[number]))
    named = ", ".join(map(str, chosen))
    return Share(threads, cpus, f"{why}, on NUMA node{'s' * (len(chosen) > 1)} {named}")


def apply(workers: int, local_rank: int | None, environ: Mapping[str, str]) -> None:
    """Sets this process's threads and cores, and says so in a line of the log.

    TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS of the user or the launcher stay as they are.

    Args:
        workers: workers on this host.
        local_rank: this worker's number among them.
        environ: the environment.
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS
        return
    allowed = os.sched_getaffinity(0)
    all_of_them = len(allowed) >= (os.cpu_count() or 1)
    decided = share(
        allowed,
        cores=machine.detect(environ).cores,
        nodes=numa_nodes() if all_of_them else (),
        workers=workers,
        local_rank=local_rank,
        # Only a scheduler tells the local rank; a cpuset of a container is shared by its workers.
        bound=not all_of_them and resolvers.local_rank(environ) is not None,
    )
    if decided is None:
        return
    if decided.cpus is not None and set(decided.cpus) != allowed:
        os.sched_setaffinity(0, decided.cpus)  # before TensorFlow makes its threads
    told = [
        f"{name}={environ[name]}"
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        if environ.get(name, "").strip()
    ]
    logger.info(
        "threads: %s (%s)", ", ".join([*_set_threads(decided.threads, environ), *told]), decided.why
    )


def _set_threads(threads: int, environ: Mapping[str, str]) -> list[str]:
    """Sets what no variable has set; returns that in words."""
    import tensorflow as tf

    threading, said = tf.config.threading, []
    for kind, variable, count in (
        ("intra-op", "TF_NUM_INTRAOP_THREADS", threads),
        ("inter-op", "TF_NUM_INTEROP_THREADS", max(_LEAST_INTER_OP, threads)),
    ):
        if environ.get(variable, "").strip():
            continue
        name = kind.replace("-", "_")
        if getattr(threading, f"get_{name}_parallelism_threads")():
            said.append(f"{kind} as the script has set them")
            continue
        try:
            getattr(threading, f"set_{name}_parallelism_threads")(count)
        except RuntimeError:  # It has made its threads already; this is but slower.
            said.append(f"{kind} as TensorFlow has started")
        else:
            said.append(f"{count} {kind}")
    return said


def numa_nodes(folder: Path = _SYSFS) -> list[list[int]]:
    """The cores of each NUMA node of this machine; empty when the system doesn't say."""
    found = {}
    for path in folder.glob("node*/cpulist"):
        number = path.parent.name.removeprefix("node")
        try:
            cpus = parse_cpus(path.read_text())
        except (OSError, ValueError):
            return []
        if cpus and number.isdecimal():  # a node may have memory alone
            found[int(number)] = cpus
    return [found[number] for number in sorted(found)]


def parse_cpus(text: str) -> list[int]:
    """Reads a list of cores as Linux writes it, such as "0-3,8".

    Raises:
        ValueError: it is no such list.
    """
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} is no list of cores")
        cpus += range(int(match[1]), int(match[2] or match[1]) + 1)
    return cpus
