"""Descriptions that leave tasks out, made whole.

Kubeflow's TFJob with `enableDynamicWorker` tells a task only of those that it needs: a worker of
itself and the parameter servers, a parameter server of itself. It writes that as

    {"sparseCluster": {"worker": {"2": "job-worker-2.ns.svc:2222"}, "ps": ["job-ps-0.ns.svc:2222"]},
     "task": {"type": "worker", "index": 2}}

The addresses of the other tasks up to this one follow from Kubeflow's names; more workers may join.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tfdist.config.fields import short
from tfdist.errors import ClusterError, explain

__all__ = ["complete"]

_SPARSE = "sparseCluster"
_NAME = re.compile(r"(?P<job>.+)-(?P<role>chief|master|worker|ps)-(?P<index>\d+)(?P<rest>[.:].*)")


def complete(content: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Returns the content of a TF_CONFIG with a whole `cluster`, of lists.

    Args:
        content: the JSON object; without a sparse description it comes back as it is.
        source: where it came from, for messages.

    Raises:
        ClusterError: a sparse description whose missing tasks can't be told.
    """
    jobs = content.get("cluster")
    if not jobs and isinstance(content.get(_SPARSE), Mapping):
        completed = _kubeflow(content[_SPARSE], content.get("task"), source)
        return {**content, "cluster": completed}
    if not isinstance(jobs, Mapping) or not any(isinstance(v, Mapping) for v in jobs.values()):
        return content
    lists = {
        role: _list(role, value, source) if isinstance(value, Mapping) else value
        for role, value in jobs.items()
    }
    return {**content, "cluster": lists}


def _list(role: str, by_index: Mapping[str, Any], source: str) -> list[Any]:
    """TensorFlow's form of addresses by index, as a list."""
    wanted = [str(index) for index in range(len(by_index))]
    if set(by_index) != set(wanted):
        raise _error(
            f"The addresses of `{role}` by index leave tasks out",
            f"indices {', '.join(sorted(by_index))}",
            source,
            "List every task, from index 0 on",
        )
    return [by_index[index] for index in wanted]


def _kubeflow(sparse: Mapping[str, Any], task: Any, source: str) -> dict[str, list[str]]:
    if not isinstance(task, Mapping):
        raise _error("A sparse cluster needs a task", f"task={task!r}", source, "Add `task`")
    role, index = task.get("type"), task.get("index")
    workers, servers = sparse.get("worker") or {}, sparse.get("ps") or []
    if not isinstance(workers, Mapping) or not isinstance(servers, list) or not servers:
        raise _error(
            "Workers that may come and go need parameter servers: with a strategy that waits for "
            "all of them, their number must be known",
            short(dict(sparse)),
            source,
            "Set enableDynamicWorker: false, or give the TFJob PS replicas",
        )
    own = workers.get(str(index)) if role == "worker" else servers[0]
    match = _NAME.fullmatch(own) if isinstance(own, str) else None
    if match is None or role not in ("worker", "ps") or match["index"] != str(index):
        raise _error(
            "A sparse cluster must have this task's own address, with Kubeflow's name",
            f"{role} {index} at {own!r}",
            source,
            "Set enableDynamicWorker: false, so that every task is listed",
        )
    count = int(match["index"]) + 1

    def names(of: str, number: int) -> list[str]:
        return [f"{match['job']}-{of}-{n}{match['rest']}" for n in range(number)]

    if role == "worker":
        return {"worker": names("worker", count), "ps": servers}
    return {"worker": names("worker", 1), "ps": names("ps", count)}


def _error(problem: str, received: str, source: str, fix: str) -> ClusterError:
    return ClusterError(explain(problem, received=received, source=source, fix=fix))
