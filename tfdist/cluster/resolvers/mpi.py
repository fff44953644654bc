"""Tasks that an MPI launcher started: Open MPI's mpirun, and MPICH's or Intel MPI's mpiexec.

They say each task's rank, but not on which host the others are. That comes from the list of hosts
that the launcher was given, and is checked against what this task knows of its own host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from tfdist.cluster.hosts import Host
from tfdist.cluster.resolvers.base import Found, Resolver, derived_port
from tfdist.cluster.resolvers.host_lists import is_host, listed_hosts
from tfdist.cluster.resolvers.slurm_names import nodes_of_ranks

__all__ = ["Mpich", "OpenMpi"]

# The same on all tasks of a job, and different for the next one.
_JOB_IDS = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PBS_JOBID",
    "LSB_JOBID",
    "JOB_ID",
    "SLURM_JOB_ID",
)


class _Mpi(Resolver):
    """What the two have in common.

    Attributes:
        rank, size, local_rank_names, local_sizes: the names of their variables.
    """

    rank: ClassVar[str]
    size: ClassVar[str]
    local_ranks: ClassVar[tuple[str, ...]]
    local_sizes: ClassVar[tuple[str, ...]]

    def applies(self) -> bool:
        return self.has(self.rank) and self.has(self.size)

    def find(self) -> Found:
        size, rank = self.number(self.size, minimum=1), self.number(self.rank)
        if size == 1:
            return self.alone(f"{self.name} with one task: no cluster")
        hosts, where = self._hosts(rank, size)
        source = f"{self.name}, task {rank} of {size} ({self.rank}, {where})"
        token = self.text(*_JOB_IDS) or ",".join(hosts)
        return self.tasks(hosts, rank, source, derived_port(token))

    def local_rank(self) -> int | None:
        if not self.applies() or not self.text(*self.local_ranks):
            return None
        return self.number(*self.local_ranks)

    def _hosts(self, rank: int, size: int) -> tuple[list[str], str]:
        """The host of each rank, and where it was read.

        Raises:
            ClusterError: no list of hosts is there, or it doesn't fit what this task knows.
        """
        local_size = self.number(*self.local_sizes, minimum=1) if self._knows_local_size() else 0
        if local_size == size:
            return ["127.0.0.1"] * size, "all on one host"
        hosts, where = listed_hosts(self)
        if not hosts:
            raise self.error(
                f"{self.name} does not say on which hosts its tasks run",
                received=f"task {rank} of {size}",
                fix="Set TFDIST_HOSTS=h1:4,h2:4 for every task, such as with mpirun -x",
            )
        for nodes in _placements(hosts, size, local_size):
            if self._fits(hosts, nodes, rank, local_size):
                return [hosts[node].name for node in nodes], where
        raise self.error(
            f"The hosts of {where} don't fit what {self.name} tells this task",
            received=f"{', '.join(map(str, hosts))}; task {rank} of {size} is number "
            f"{self.local_rank()} of {local_size or 'unknown'} on {self.place.hostname()}",
            fix="Set TFDIST_HOSTS=h1:4,h2:4 in the order of the ranks",
        )

    def _knows_local_size(self) -> bool:
        return bool(self.text(*self.local_sizes))

    def _fits(
        self, hosts: Sequence[Host], nodes: Sequence[int], rank: int, local_size: int
    ) -> bool:
        if rank >= len(nodes):
            return False
        own = self.place.hostname()
        by_name = [index for index, host in enumerate(hosts) if is_host(host.name, own)]
        if by_name and nodes[rank] not in by_name:
            return False
        here = [index for index, node in enumerate(nodes) if node == nodes[rank]]
        local = self.local_rank()
        return local_size in (0, len(here)) and local in (None, here.index(rank))


def _placements(hosts: Sequence[Host], size: int, local_size: int) -> Iterator[list[int]]:
    """The ways in which the launchers place ranks: slot by slot, node by node, as many on each."""
    counts, left = [], size
    for host in hosts:
        counts.append(min(len(host.slots), left))
        left -= counts[-1]
    if not left:
        yield nodes_of_ranks(counts)
    if len(hosts) <= size:
        even = [size // len(hosts) + (node < size % len(hosts)) for node in range(len(hosts))]
        yield nodes_of_ranks(even)
        yield nodes_of_ranks(even, 1)
    if local_size and size % local_size == 0 and size // local_size <= len(hosts):
        yield nodes_of_ranks([local_size] * (size // local_size))


class OpenMpi(_Mpi):
    """Open MPI's mpirun; OMPI_COMM_WORLD_* are promised by its documentation."""

    name = "Open MPI"
    rank = "OMPI_COMM_WORLD_RANK"
    size = "OMPI_COMM_WORLD_SIZE"
    local_ranks = ("OMPI_COMM_WORLD_LOCAL_RANK",)
    local_sizes = ("OMPI_COMM_WORLD_LOCAL_SIZE",)


class Mpich(_Mpi):
    """MPICH's and Intel MPI's mpiexec (Hydra), and HPE's (PALS)."""

    name = "MPICH"
    rank = "PMI_RANK"
    size = "PMI_SIZE"
    local_ranks = ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")
    local_sizes = ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")

    def applies(self) -> bool:
        # srun --mpi=pmi2 sets PMI_RANK too, without the local variables: Slurm's own say more.
        return super().applies() and (
            self._knows_local_size() or not (self.has("SLURM_STEP_ID") or self.has("SLURM_STEPID"))
        )
