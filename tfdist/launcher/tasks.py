"""The processes of a job by their parts in it, numbered by rank in the order of their start."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LaunchTask", "with_servers", "workers_only"]


@dataclass(frozen=True)
class LaunchTask:
    """One process to start.

    Attributes:
        rank: its number in the job, over all roles.
        role: its task type in TF_CONFIG.
        index: its task index.
        name: what messages call it.
        label: what its lines of output start with, in brackets.
        log: the name of its log file.
    """

    rank: int
    role: str
    index: int
    name: str
    label: str
    log: str


def workers_only(count: int) -> tuple[LaunchTask, ...]:
    """Workers that are all alike: each is called by its rank alone."""
    return tuple(
        LaunchTask(rank, "worker", rank, f"worker {rank}", str(rank), f"rank-{rank}.log")
        for rank in range(count)
    )


def with_servers(workers: int, ps: int, evaluator: bool) -> tuple[LaunchTask, ...]:
    """A chief, workers, parameter servers, and an evaluator if wanted; called by role."""
    places = [("chief", 0)]
    places += [("worker", index) for index in range(workers)]
    places += [("ps", index) for index in range(ps)]
    places += [("evaluator", 0)] if evaluator else []
    return tuple(_named(rank, role, index) for rank, (role, index) in enumerate(places))


def _named(rank: int, role: str, index: int) -> LaunchTask:
    name = role if role in ("chief", "evaluator") else f"{role} {index}"
    return LaunchTask(rank, role, index, name, name, f"{name.replace(' ', '-')}.log")
