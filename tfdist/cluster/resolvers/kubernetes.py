"""Kubernetes: pods with static DNS names, found without asking its API.

What the pods can't know by themselves is in two variables of their container: TFDIST_SERVICE, the
headless Service that gives them their names, and TFDIST_WORLD_SIZE (or TFDIST_ROLES), how many
there are. Without TFDIST_SERVICE a pod is a process on its own.
"""

from __future__ import annotations

from tfdist.cluster.resolvers.base import DEFAULT_PORT, Found, Resolver

__all__ = ["JobSet", "Pods"]

SERVICE = "TFDIST_SERVICE"
WORLD_SIZE = "TFDIST_WORLD_SIZE"
JOBSET = "JOBSET_NAME"


class JobSet(Resolver):
    """A JobSet with a replicated job per role: each pod's name has the role and its index in it.

    The pods are `<jobset>-<role>-0-<index>.<service>`. JOBSET_NAME and REPLICATED_JOB_NAME come
    from the annotations of the same names, by the downward API.
    """

    name = "Kubernetes JobSet"

    def applies(self) -> bool:
        return self.has(SERVICE, JOBSET)

    def find(self) -> Found:
        jobset, service = self.text(JOBSET), self.text(SERVICE)
        role, index = self.text("REPLICATED_JOB_NAME"), self.number("JOB_COMPLETION_INDEX")
        if not self.has("TFDIST_ROLES"):
            raise self.error(
                "TFDIST_ROLES is not set",
                received=f"replicated job {role!r}",
                fix="Set it to the number of pods of each replicated job, such as chief=1,worker=2",
            )
        counts = self.role_counts()
        if role not in counts or index >= counts[role]:
            raise self.error(
                "The replicated jobs must be named after the roles in TFDIST_ROLES, with as many "
                "completions",
                received=f"pod {index} of replicated job {role!r}, "
                f"TFDIST_ROLES={self.text('TFDIST_ROLES')}",
                fix="Name it chief, worker, ps or evaluator",
            )
        if self.text("JOB_INDEX") not in ("", "0"):
            raise self.error(
                "A replicated job must have one replica, with a completion for each task",
                received=f"job index {self.text('JOB_INDEX')}",
                fix="Set replicas: 1 and completions to the number of tasks",
            )
        port = self.number("TFDIST_PORT", minimum=1) if self.has("TFDIST_PORT") else DEFAULT_PORT
        jobs = {
            name: tuple(f"{jobset}-{name}-0-{n}.{service}:{port}" for n in range(count))
            for name, count in counts.items()
        }
        return Found(f"Kubernetes JobSet {jobset} (TFDIST_SERVICE={service})", jobs, role, index)


class Pods(Resolver):
    """The pods of an Indexed Job or a StatefulSet: `<name>-<index>.<service>`."""

    name = "Kubernetes"

    def applies(self) -> bool:
        return self.has(SERVICE) or self.has("JOB_COMPLETION_INDEX")

    def find(self) -> Found:
        if not self.has(SERVICE):
            return self.alone(
                "Kubernetes Indexed Job without TFDIST_SERVICE: no cluster, each pod is on its own"
            )
        count = self._count()
        kind, prefix, index = self._own_name()
        service = self.text(SERVICE)
        hosts = [f"{prefix}-{number}.{service}" for number in range(count)]
        return self.tasks(
            hosts,
            index,
            f"Kubernetes {kind} {prefix}, pod {index} of {count} (TFDIST_SERVICE={service})",
        )

    def _count(self) -> int:
        if self.has(WORLD_SIZE):
            return self.number(WORLD_SIZE, minimum=1)
        if self.has("TFDIST_ROLES"):
            return sum(self.role_counts().values())
        raise self.error(
            "TFDIST_SERVICE is set, but not how many pods there are",
            received=f"TFDIST_SERVICE={self.text(SERVICE)}",
            fix="Set TFDIST_WORLD_SIZE to the Job's completions or the StatefulSet's replicas",
        )

    def _own_name(self) -> tuple[str, str, int]:
        """What the pod belongs to, that one's name, and the pod's index, all from its host name.

        Raises:
            ClusterError: the host name is not the pod's.
        """
        own = (self.text("HOSTNAME") or self.place.hostname()).partition(".")[0]
        prefix, _, ordinal = own.rpartition("-")
        index = self.text("JOB_COMPLETION_INDEX")
        is_pods = bool(prefix) and ordinal.isascii() and ordinal.isdecimal()
        if not is_pods or (index and index != ordinal):
            raise self.error(
                "The pod's host name must end in its index, as in an Indexed Job or a StatefulSet",
                received=f"host name {own}" + (f", JOB_COMPLETION_INDEX={index}" if index else ""),
                fix="Use completionMode: Indexed, without hostNetwork; or set TFDIST_HOSTS",
            )
        return "Indexed Job" if index else "StatefulSet", prefix, int(ordinal)
