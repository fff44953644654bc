"""Hosts that a user, a batch system or an MPI launcher lists, and who runs which rank on them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tfdist.cluster.hosts import Host, parse_hostfile, parse_hosts
from tfdist.cluster.resolvers.base import Found, Place, Resolver
from tfdist.cluster.resolvers.slurm_names import expand_counts, expand_hosts

__all__ = ["HostList", "is_host", "listed_hosts"]

HOSTS = "TFDIST_HOSTS"
RANK = "TFDIST_RANK"

# Files with a host a line, per slot or with slots=N: PBS's, and those that MPI launchers were given.
_FILES = (
    "PBS_NODEFILE",
    "LSB_DJOB_HOSTFILE",
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)


class HostList(Resolver):
    """TFDIST_HOSTS=h1:4,h2:4 with each task's TFDIST_RANK: the same on every host but the rank.

    Where every host has one slot, the rank may be left out: it is found by the host's own name.
    """

    name = "TFDIST_HOSTS"

    def applies(self) -> bool:
        if not self.has(HOSTS):
            return False
        # An MPI launcher knows the rank; the list then only tells it the hosts.
        return self.has(RANK) or not (
            self.has("OMPI_COMM_WORLD_RANK") or self.has("PMI_RANK", "PMI_SIZE")
        )

    def find(self) -> Found:
        hosts = parse_hosts(self.text(HOSTS), HOSTS)
        ranks = [host.name for host in hosts for _ in host.slots]
        if self.has(RANK):
            rank, how = self.number(RANK), RANK
        else:
            rank, how = self._by_name(ranks), "by this host's name"
        return self.tasks(ranks, rank, f"TFDIST_HOSTS, task {rank} of {len(ranks)} ({how})")

    def _by_name(self, ranks: list[str]) -> int:
        own = self.place.hostname()
        mine = [rank for rank, host in enumerate(ranks) if is_host(host, own)]
        if len(mine) != 1:
            problem = "is none of the hosts" if not mine else "has several tasks"
            raise self.error(
                f"TFDIST_RANK is not set, and this host {problem}, so its rank can't be told",
                received=f"host {own}, TFDIST_HOSTS={self.text(HOSTS)}",
                fix="Set TFDIST_RANK of each task, counted from 0",
            )
        return mine[0]


def is_host(listed: str, own: str) -> bool:
    """Whether a listed name is this host's own, with or without its domain."""
    listed, own = listed.lower(), own.lower()
    return listed == own or (
        ("." not in listed or "." not in own)
        and listed.partition(".")[0] == own.partition(".")[0]
        and not listed.partition(".")[0].isdecimal()
    )


def listed_hosts(resolver: Resolver) -> tuple[tuple[Host, ...], str]:
    """The hosts of this job that the environment lists, with their slots, and where.

    Returns:
        The hosts and the name of the variable; no hosts, and "", where none is listed.

    Raises:
        ClusterError: a list can't be read.
    """
    if resolver.has(HOSTS):
        return parse_hosts(resolver.text(HOSTS), HOSTS), HOSTS
    for source, text in _texts(resolver, resolver.place):
        return parse_hostfile(text, source), source
    return (), ""


def _texts(resolver: Resolver, place: Place) -> Iterator[tuple[str, str]]:
    """Every list that there is, as the text of a hostfile."""
    if resolver.has("LSB_MCPU_HOSTS"):
        words = resolver.text("LSB_MCPU_HOSTS").split()
        pairs = zip(words[::2], words[1::2])
        yield "LSB_MCPU_HOSTS", "\n".join(f"{host} slots={slots}" for host, slots in pairs)
    if resolver.has("PE_HOSTFILE"):
        lines = (place.read(resolver.text("PE_HOSTFILE")) or "").splitlines()
        rows = [line.split() for line in lines if len(line.split()) >= 2]
        if rows:
            yield "PE_HOSTFILE", "\n".join(f"{row[0]} slots={row[1]}" for row in rows)
    for name in _FILES:
        text = place.read(resolver.text(name)) if resolver.has(name) else None
        if text and text.strip():
            yield name, text
    if resolver.has("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"):
        try:
            nodes = expand_hosts(resolver.text("SLURM_JOB_NODELIST"))
            counts = expand_counts(resolver.text("SLURM_TASKS_PER_NODE"))
        except ValueError as error:
            raise resolver.error(
                f"Slurm's list of nodes can't be read: {error}",
                received=resolver.text("SLURM_JOB_NODELIST"),
                fix="Set TFDIST_HOSTS=h1:4,h2:4 on every task",
            ) from None
        if len(counts) != len(nodes):  # those of mpirun's own helper step
            counts = [1] * len(nodes)
        pairs_of_slurm = zip(nodes, counts)
        yield "SLURM_JOB_NODELIST", "\n".join(f"{n} slots={c}" for n, c in pairs_of_slurm)
    if resolver.has("SM_HOSTS"):
        try:
            yield "SM_HOSTS", "\n".join(json.loads(resolver.text("SM_HOSTS")))
        except (ValueError, TypeError):
            raise resolver.error(
                "SM_HOSTS must be a JSON list of names",
                received=resolver.text("SM_HOSTS"),
                fix="Leave it to SageMaker",
            ) from None
