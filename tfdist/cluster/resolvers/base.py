"""What every resolver is: a reader of one kind of environment.

A resolver has two questions to answer. `applies`: is this process in such an environment at all?
`find`: which tasks are there, and which one is it? It may answer the second with "alone", and why:
being merely inside of an allocation makes no cluster.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tfdist.cluster.check import ROLES
from tfdist.errors import ClusterError, explain

__all__ = ["DEFAULT_PORT", "Found", "Place", "Resolver", "derived_port"]

# Where each task has a network address of its own, such as in a pod.
DEFAULT_PORT = 2222

# Derived ports stay below 32768, where Linux starts to give ports to outgoing connections, and each
# job has a range of its own beside those of the jobs before and after it.
_LOWEST_PORT = 11000
_PORTS_OF_A_JOB = 64
_RANGES = (32768 - _LOWEST_PORT) // _PORTS_OF_A_JOB


@dataclass(frozen=True)
class Found:
    """What a resolver found.

    Attributes:
        source: which environment it is, and what makes it a cluster or not; for messages.
        jobs: addresses by role; empty for a process on its own.
        task_type: this process's role; None for a process on its own.
        task_index: this process's index in its role.
    """

    source: str
    jobs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    task_type: str | None = None
    task_index: int = 0


class Place:
    """What a resolver may ask beside the environment, so that a test can answer instead."""

    def hostname(self) -> str:
        """This host's name."""
        import socket

        return socket.gethostname()

    def is_terminal(self) -> bool:
        """Whether somebody types into this process."""
        import sys

        try:
            return sys.stdin is not None and sys.stdin.isatty()
        except ValueError:  # it is closed
            return False

    def slurm_step(self) -> str:
        """The step that Slurm started this process in, such as "14.batch" or "14.0"; "" if unknown.

        Each step's processes descend from a `slurmstepd: [JOB.STEP]`. A container hides it.
        """
        import os

        process = os.getppid()
        while process > 1:
            title = (self.read(f"/proc/{process}/cmdline") or "").rstrip("\0")
            if title.startswith("slurmstepd: [") and title.endswith("]"):
                return title.partition("[")[2][:-1]
            status = self.read(f"/proc/{process}/stat") or ""
            parent = status.rpartition(")")[2].split()[1:2]  # the name before may hold anything
            process = int(parent[0]) if parent else 0
        return ""

    def read(self, path: str) -> str | None:
        """The text of a file; None when it can't be read."""
        try:
            return Path(path).read_text()
        except (OSError, UnicodeDecodeError):
            return None


class Resolver(ABC):
    """Reads one kind of environment.

    Args:
        environ: the environment variables.
        place: the host.
    """

    name: ClassVar[str]

    def __init__(self, environ: Mapping[str, str], place: Place | None = None) -> None:
        self.environ = environ
        self.place = place or Place()

    @abstractmethod
    def applies(self) -> bool:
        """Whether the process is in this kind of environment."""

    @abstractmethod
    def find(self) -> Found:
        """The cluster, or why there is none.

        Raises:
            ClusterError: the environment contradicts itself, or leaves out what is needed.
        """

    def local_rank(self) -> int | None:
        """This process's number among those on its host; None when the environment doesn't say."""
        return None

    def has(self, *names: str) -> bool:
        """Whether all the variables are there, and not empty."""
        return all(self.environ.get(name, "").strip() for name in names)

    def text(self, *names: str) -> str:
        """The value of the first of the variables that is set; "" when none is."""
        return next((self.environ[name].strip() for name in names if self.has(name)), "")

    def number(self, *names: str, minimum: int = 0) -> int:
        """The integer in the first of the variables that is set.

        Raises:
            ClusterError: none is set, or its value is no integer from `minimum` on.
        """
        given = next((name for name in names if self.has(name)), None)
        if given is None:
            raise self.error(
                f"{names[0]} is not set", fix=f"Start every task with {self.name}'s launcher"
            )
        value = self.text(given)
        if not (value.isascii() and value.isdecimal()) or int(value) < minimum:
            raise self.error(
                f"{given} must be an integer from {minimum} on",
                received=repr(value),
                fix=f"Leave it to {self.name} to set it",
            )
        return int(value)

    def error(self, problem: str, *, received: str | None = None, fix: str) -> ClusterError:
        """A ClusterError that names this environment, and says how to get out of it."""
        return ClusterError(
            explain(
                problem,
                received=received,
                source=f"{self.name} environment",
                fix=f"{fix}; or set TF_CONFIG yourself (TF_CONFIG='{{}}' trains alone)",
            )
        )

    def alone(self, why: str) -> Found:
        """No cluster, and why not."""
        return Found(why)

    def tasks(self, hosts: Sequence[str], rank: int, source: str, port: int | None = None) -> Found:
        """A cluster of one task per entry of `hosts`, roles by TFDIST_ROLES (default: all workers).

        Args:
            hosts: the host of each rank.
            rank: this process's.
            source: for messages.
            port: the first port, derived from the job: each rank then has one of its own where the
                job's range suffices, because names of several nodes may mean one machine. None is
                for hosts with a network of their own. TFDIST_PORT takes the place of both.

        Raises:
            ClusterError: the rank is none of the ranks, or the roles are not as many as the hosts.
        """
        if rank >= len(hosts):
            raise self.error(
                f"The rank must be below the number of tasks, {len(hosts)}",
                received=f"rank {rank}",
                fix="Give each task its own rank, counted from 0",
            )
        base = port or DEFAULT_PORT
        if self.has("TFDIST_PORT"):
            base = self.number("TFDIST_PORT", minimum=1)
        spread = port is not None and len(hosts) <= _PORTS_OF_A_JOB
        ports = [base + n for n in (range(len(hosts)) if spread else _local_indices(hosts))]
        if max(ports) > 65535:
            raise self.error(
                "The ports go up to 65535",
                received=f"TFDIST_PORT={base}, {len(hosts)} tasks",
                fix="Use a smaller TFDIST_PORT",
            )
        jobs: dict[str, list[str]] = {}
        own = ("", 0)
        for index, role in enumerate(self.roles(len(hosts))):
            addresses = jobs.setdefault(role, [])
            if index == rank:
                own = (role, len(addresses))
            host = f"[{hosts[index]}]" if ":" in hosts[index] else hosts[index]
            addresses.append(f"{host}:{ports[index]}")
        return Found(source, {role: tuple(found) for role, found in jobs.items()}, *own)

    def roles(self, count: int) -> list[str]:
        """The role of each rank: by TFDIST_ROLES such as "chief=1,worker=2,ps=1", or all workers.

        Raises:
            ClusterError: TFDIST_ROLES can't be read, or is not of `count` tasks.
        """
        if not self.has("TFDIST_ROLES"):
            return ["worker"] * count
        roles = [role for role, number in self.role_counts().items() for _ in range(number)]
        if len(roles) != count:
            raise self.error(
                f"TFDIST_ROLES must be of as many tasks as there are, {count}",
                received=f"TFDIST_ROLES={self.text('TFDIST_ROLES')}, {len(roles)} tasks",
                fix="Change TFDIST_ROLES or the number of tasks",
            )
        return roles

    def role_counts(self) -> dict[str, int]:
        """The number of tasks of each role in TFDIST_ROLES, in its order.

        Raises:
            ClusterError: it can't be read.
        """
        counts: dict[str, int] = {}
        text = self.text("TFDIST_ROLES")
        for part in text.split(","):
            role, _, number = (word.strip() for word in part.partition("="))
            is_number = number.isascii() and number.isdecimal() and int(number) > 0
            if role not in ROLES or role in counts or not is_number:
                raise self.error(
                    f"TFDIST_ROLES has the number of tasks of each role ({', '.join(ROLES)})",
                    received=f"TFDIST_ROLES={text}",
                    fix="Such as TFDIST_ROLES=chief=1,worker=2,ps=1",
                )
            counts[role] = int(number)
        return counts


def _local_indices(hosts: Sequence[str]) -> list[int]:
    """The number of each rank among those on its host."""
    seen: dict[str, int] = {}
    indices = []
    for host in hosts:
        indices.append(seen.get(host, 0))
        seen[host] = indices[-1] + 1
    return indices


def derived_port(token: str, step: int = 0) -> int:
    """The first port of a job, the same on all its hosts and another one for the next job.

    Args:
        token: the job's id, or any text that all its tasks share.
        step: the number of the step within the job, where several may run at once.
    """
    digits = token.isascii() and token.isdecimal()
    number = int(token) if digits else zlib.crc32(token.encode())
    return _LOWEST_PORT + (number + 97 * step) % _RANGES * _PORTS_OF_A_JOB
