"""The cluster: which tasks there are, and which one this process is.

Pure Python: nothing here imports TensorFlow or opens a socket. `tfdist.cluster.check` holds the
rules that a description must keep; `tfdist.cluster.resolvers` finds it where TF_CONFIG isn't set.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tfdist.cluster import check as cluster_check
from tfdist.cluster import resolvers, sparse
from tfdist.cluster.check import TRAINING_ROLES
from tfdist.errors import ClusterError, explain

__all__ = ["Cluster", "Task"]

logger = logging.getLogger(__name__)

TF_CONFIG = "TF_CONFIG"


@dataclass(frozen=True)
class Task:
    """One process of the cluster."""

    type: str
    index: int
    address: str

    @property
    def name(self) -> str:
        """Such as "worker 1"."""
        return f"{self.type} {self.index}"


@dataclass(frozen=True)
class Cluster:
    """The training cluster, seen from one of its tasks.

    An `evaluator` is no part of the training cluster: it is left out of `jobs`, and a process
    whose own role it is counts as a single process.

    Attributes:
        jobs: addresses ("host:port") by role, in the order chief, worker, ps.
        task_type: this process's role; None without a cluster.
        task_index: this process's index in its role.
        source: where the description came from, for messages.
    """

    jobs: Mapping[str, tuple[str, ...]] = field(hash=False)
    task_type: str | None = None
    task_index: int = 0
    source: str = field(default="code", compare=False)

    def __post_init__(self) -> None:
        """Checks and normalises the description.

        Raises:
            ClusterError: the description breaks a rule of `tfdist.cluster.check`.
        """
        jobs = cluster_check.check_jobs(self.jobs, self.source) if self.jobs else {}
        if jobs or self.task_type is not None:
            cluster_check.check_task(jobs, self.task_type, self.task_index, self.source)
        training = {role: jobs[role] for role in TRAINING_ROLES if role in jobs}
        object.__setattr__(self, "jobs", MappingProxyType(training))

    def __reduce__(self) -> tuple[Any, ...]:
        """A mapping proxy can't be pickled; a dict can."""
        return (type(self), (dict(self.jobs), self.task_type, self.task_index, self.source))

    @classmethod
    def local(cls, source: str = "no TF_CONFIG") -> Cluster:
        """One process on its own."""
        return cls({}, None, 0, source)

    @classmethod
    def resolve(cls, environ: Mapping[str, str] | None = None) -> Cluster:
        """Finds the cluster from the environment, and logs which one it is and why.

        Args:
            environ: the environment; None means `os.environ`.

        Returns:
            The cluster of TF_CONFIG; where that isn't set, the one that a resolver finds (see
            `tfdist.cluster.resolvers`); otherwise `Cluster.local()`. `source` says which, and why.

        Raises:
            ClusterError: TF_CONFIG, or the environment that a resolver reads, is wrong.
        """
        variables = os.environ if environ is None else environ
        text = variables.get(TF_CONFIG, "")
        if text.strip():
            return cls.from_tf_config(text)
        found = resolvers.find(variables)
        cluster = cls(found.jobs, found.task_type, found.task_index, found.source)
        _tell(f"{cluster.task_name} by {found.source}" if found.jobs else found.source)
        return cluster

    @classmethod
    def from_tf_config(cls, text: str, source: str = TF_CONFIG) -> Cluster:
        """Reads the JSON text of a TF_CONFIG.

        Args:
            text: the JSON object with `cluster` and `task`; `{}` means no cluster.
            source: where it came from, for messages.

        Returns:
            The cluster.

        Raises:
            ClusterError: the text is not a right TF_CONFIG; the message has a corrected one.
        """
        content = sparse.complete(cluster_check.parse(text, source), source)
        if not content:
            return cls.local(f"{source} without a cluster")
        return cls(
            cluster_check.jobs_of(content, source),
            *cluster_check.task_of(content, source),
            source,
        )

    @classmethod
    def from_resolver(cls, resolver: Any) -> Cluster:
        """Reads a `tf.distribute.cluster_resolver.ClusterResolver`, or anything shaped like one.

        Args:
            resolver: has `cluster_spec()` (with `as_dict()`), `task_type` and `task_id`.

        Returns:
            The cluster; `Cluster.local()` when the resolver's cluster is empty.

        Raises:
            ClusterError: what the resolver says is no right cluster.
        """
        source = type(resolver).__name__
        try:
            spec = resolver.cluster_spec()
            jobs = spec.as_dict() if spec else {}
            task_type, task_id = resolver.task_type, resolver.task_id
        except AttributeError as error:
            raise ClusterError(
                explain(
                    "A cluster resolver has `cluster_spec()`, `task_type` and `task_id`",
                    received=f"{source}: {error}",
                    fix="Give a tf.distribute.cluster_resolver.ClusterResolver, or set TF_CONFIG",
                )
            ) from None
        if not jobs:
            return cls.local(f"{source} without a cluster")
        task = {"type": task_type or None, "index": task_id}
        return cls(jobs, *cluster_check.task_of({"cluster": jobs, "task": task}, source), source)

    def to_tf_config(self) -> str:
        """The TF_CONFIG that describes this cluster and task; `{}` without a cluster."""
        if self.task_type is None:
            return "{}"
        cluster = {role: list(addresses) for role, addresses in self.jobs.items()}
        return json.dumps(
            {"cluster": cluster, "task": {"type": self.task_type, "index": self.task_index}}
        )

    def tasks(self) -> list[Task]:
        """Every task of the training cluster: the chief, the workers, then the ps."""
        return [
            Task(role, index, address)
            for role, addresses in self.jobs.items()
            for index, address in enumerate(addresses)
        ]

    @property
    def is_evaluator(self) -> bool:
        """Whether this process evaluates beside the training cluster."""
        return self.task_type == "evaluator"

    @property
    def num_workers(self) -> int:
        """Processes that train together with this one: the chief and the workers; at least 1."""
        if self.task_type is None or self.is_evaluator:
            return 1
        return len(self.jobs.get("chief", ())) + len(self.jobs.get("worker", ()))

    @property
    def num_ps(self) -> int:
        """Parameter servers."""
        return len(self.jobs.get("ps", ()))

    @property
    def rank(self) -> int:
        """This process among the workers, the chief first; among the ps for a ps."""
        if self.task_type == "worker":
            return len(self.jobs.get("chief", ())) + self.task_index
        return 0 if self.is_evaluator else self.task_index

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files for its cluster; an evaluator does, for itself."""
        return self.rank == 0 and self.task_type != "ps"

    @property
    def address(self) -> str | None:
        """This process's own "host:port"; None for a process that needs none."""
        if self.task_type is None or self.is_evaluator:
            return None
        return self.jobs[self.task_type][self.task_index]

    @property
    def is_distributed(self) -> bool:
        """Whether several workers train together."""
        return self.num_workers > 1

    @property
    def task_name(self) -> str:
        """This process, such as "worker 1"; "local" without a cluster."""
        return "local" if self.task_type is None else f"{self.task_type} {self.task_index}"


@functools.cache
def _tell(what: str) -> None:
    """Logs where the cluster comes from, once: it is resolved again to see whether it changed."""
    logger.info("cluster: %s", what)
