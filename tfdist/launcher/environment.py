"""What each worker finds in its environment: pure functions of the spec and the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.errors import LaunchError, explain
from tfdist.launcher.leftovers import JOB_VARIABLE
from tfdist.launcher.machine import Machine
from tfdist.launcher.spec import LaunchSpec
from tfdist.launcher.tasks import LaunchTask

_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Environments:
    """One environment per process, and what the user should know about them."""

    by_rank: tuple[dict[str, str], ...]
    notices: tuple[str, ...]


def build(
    spec: LaunchSpec,
    ports: Sequence[int],
    job: str,
    machine: Machine,
    inherited: Mapping[str, str],
) -> Environments:
    """Builds the environment of every process.

    Precedence: what makes up the cluster, then `spec.env`, then the launcher's other settings, then
    the inherited environment. Settings that only tune (threads, log level) yield to the user's own.

    Args:
        spec: what to start.
        ports: one port per process; an evaluator's stays unused.
        job: the token that marks every process of the job.
        machine: the cores and GPUs to share out.
        inherited: the launcher's own environment.

    Raises:
        LaunchError: if the machine has fewer GPUs than the spec asks for.
    """
    notices = []
    user = {**inherited, **spec.env}
    common = {"PYTHONUNBUFFERED": "1"}
    # A native crash then leaves the Python stack at the end of the worker's log.
    common["PYTHONFAULTHANDLER"] = user.get("PYTHONFAULTHANDLER", "1")
    common["TF_CPP_MIN_LOG_LEVEL"] = user.get("TF_CPP_MIN_LOG_LEVEL", "1")
    if spec.start_timeout is not None:
        common["TFDIST_START_TIMEOUT"] = f"{spec.start_timeout:g}"
    threads = _thread_limits(spec, machine.cores, user)
    if threads:
        common.update(threads)
        limits = " ".join(f"{name}={value}" for name, value in threads.items())
        who = "1 worker has" if spec.num_workers == 1 else f"{spec.num_workers} workers share"
        others = ", 1 for each other process" if spec.num_ps else ""
        notices.append(f"{who} {machine.cores} cores: {limits} for each{others}")
    if "TF_CONFIG" in inherited:
        notices.append("the TF_CONFIG of this environment is not used: each process gets its own")

    alone = len(spec.tasks) == 1
    slices, notice = _gpu_slices(machine.gpus, spec.num_workers, spec.devices_per_worker, alone)
    if notice:
        notices.append(notice)
    if not machine.gpus and spec.devices_per_worker is not None:
        common["TFDIST_DEVICES"] = f"cpu:{spec.devices_per_worker}"

    outer = inherited.get(JOB_VARIABLE)
    # A launcher inside a launcher: both find their processes.
    common_last = {
        "TFDIST_WORLD_SIZE": str(len(spec.tasks)),
        JOB_VARIABLE: f"{outer}/{job}" if outer else job,
    }
    cluster = _cluster(spec.tasks, ports)
    by_rank = []
    for task in spec.tasks:
        own = {}
        if slices:  # Only workers compute; a chief with its servers would take their memory.
            computes = task.role == "worker"
            own["CUDA_VISIBLE_DEVICES"] = ",".join(slices[task.index]) if computes else ""
        if threads and spec.num_ps and task.role != "worker":
            own.update(dict.fromkeys(threads, "1"))
        place = {
            "TF_CONFIG": json.dumps(
                {"cluster": cluster, "task": {"type": task.role, "index": task.index}}
            ),
            "TFDIST_RANK": str(task.rank),
            "TFDIST_LOCAL_RANK": str(task.index if spec.num_ps else task.rank),
        }
        by_rank.append({**inherited, **common, **own, **spec.env, **place, **common_last})
    return Environments(tuple(by_rank), tuple(notices))


def _cluster(tasks: Sequence[LaunchTask], ports: Sequence[int]) -> dict[str, list[str]]:
    """The addresses by role; an evaluator is no part of the cluster that trains."""
    cluster: dict[str, list[str]] = {}
    for task in tasks:
        if task.role != "evaluator":
            cluster.setdefault(task.role, []).append(f"127.0.0.1:{ports[task.rank]}")
    return cluster


def _thread_limits(spec: LaunchSpec, cores: int, user: Mapping[str, str]) -> dict[str, str]:
    """Threads per worker so that all together use each core once; one worker has them all.

    Beside parameter servers even one worker is limited. The others get one thread each: what they
    do is short, and waits for the workers.
    """
    if len(spec.tasks) == 1:
        return {}
    each = str(max(1, cores // spec.num_workers))
    return {name: each for name in _THREAD_VARIABLES if name not in user}


def _gpu_slices(
    gpus: Sequence[str], workers: int, each: int | None, alone: bool
) -> tuple[list[tuple[str, ...]] | None, str | None]:
    """Each worker's GPUs by its local rank, or None to leave the environment as it is."""
    if not gpus or (each is None and alone):
        return None, None
    if each is None:
        each = len(gpus) // workers
        if each == 0:
            shared: list[tuple[str, ...]] = [(gpus[rank % len(gpus)],) for rank in range(workers)]
            return shared, (
                f"{workers} workers share {len(gpus)} GPUs; start at most {len(gpus)} workers to "
                "give each its own"
            )
    if each * workers > len(gpus):
        raise LaunchError(
            explain(
                f"{workers} workers with {each} GPUs each need {each * workers} GPUs; "
                f"this machine shows {len(gpus)}",
                received=each,
                source="--devices-per-worker",
                fix=f"Use at most {len(gpus) // workers} devices per worker, or fewer workers"
                if len(gpus) >= workers
                else "Start fewer workers, or leave --devices-per-worker out to share the GPUs",
            )
        )
    return [tuple(gpus[rank * each : (rank + 1) * each]) for rank in range(workers)], None
