"""Where the cluster is described when TF_CONFIG is not set: one resolver per environment.

    base          what a resolver is
    host_lists    TFDIST_HOSTS, and the lists of batch systems
    mpi           Open MPI, MPICH
    slurm         steps of srun; slurm_names reads its compact lists
    kubernetes    Indexed Job, StatefulSet, JobSet
    clouds        SageMaker, Cloud TPU, Ray

Nothing here imports TensorFlow, opens a socket or asks a scheduler: the environment says it all.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.cluster.resolvers.base import Found, Place, Resolver
from tfdist.cluster.resolvers.clouds import CloudTpu, Ray, SageMaker
from tfdist.cluster.resolvers.host_lists import HostList
from tfdist.cluster.resolvers.kubernetes import JobSet, Pods
from tfdist.cluster.resolvers.mpi import Mpich, OpenMpi
from tfdist.cluster.resolvers.slurm import Slurm

__all__ = [
    "RESOLVERS",
    "Found",
    "Place",
    "Resolver",
    "find",
    "local_rank",
    "sees_gpus_of_others",
]

# The nearest to the process first: what the user wrote, then the launcher that started it (mpirun
# also runs inside of Slurm and SageMaker), then the scheduler around it.
RESOLVERS: tuple[type[Resolver], ...] = (
    HostList,
    OpenMpi,
    Mpich,
    Slurm,
    SageMaker,
    JobSet,
    Pods,
    CloudTpu,
    Ray,
)


def find(environ: Mapping[str, str], place: Place | None = None) -> Found:
    """Finds the cluster in an environment without TF_CONFIG.

    Args:
        environ: the environment.
        place: the host; None means this one.

    Returns:
        The cluster of the first resolver that finds one. Otherwise no cluster, and the first reason
        why not.

    Raises:
        ClusterError: a resolver's environment contradicts itself or is incomplete.
    """
    reason: Found | None = None
    for resolver in (kind(environ, place) for kind in RESOLVERS):
        if resolver.applies():
            found = resolver.find()
            if found.jobs:
                return found
            reason = reason or found
    return reason or Found("no TF_CONFIG")


def local_rank(environ: Mapping[str, str], place: Place | None = None) -> int | None:
    """This process's number among those of its host, by whatever started it; None if unknown."""
    ranks = (kind(environ, place).local_rank() for kind in RESOLVERS)
    return next((rank for rank in ranks if rank is not None), None)


def sees_gpus_of_others(environ: Mapping[str, str]) -> bool:
    """Whether CUDA_VISIBLE_DEVICES names the GPUs of the whole node to each of its tasks."""
    return Slurm(environ).sees_gpus_of_others()
