"""The rules of a cluster description, each with a message that shows a corrected example."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tfdist.config.fields import did_you_mean, nearest, short
from tfdist.errors import ClusterError, explain

__all__ = [
    "ROLES",
    "TRAINING_ROLES",
    "check_jobs",
    "check_task",
    "is_loopback",
    "jobs_of",
    "parse",
    "split_address",
    "task_of",
]

TRAINING_ROLES = ("chief", "worker", "ps")
ROLES = (*TRAINING_ROLES, "evaluator")

_EXAMPLE_JOBS: Mapping[str, Any] = {"worker": ["10.0.0.1:12345", "10.0.0.2:12345"]}
_LOOPBACK = re.compile(r"localhost|ip6-localhost|127\.\d+\.\d+\.\d+|::1|0\.0\.0\.0|::")
_SAME_HOST = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")

Jobs = Mapping[str, tuple[str, ...]]


def parse(text: str, source: str) -> dict[str, Any]:
    """Reads the JSON object.

    Raises:
        ClusterError: the text is not JSON, or not an object.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        hint = " (JSON needs double quotes)" if "'" in text and '"' not in text else ""
        raise _error(f"{source} is not valid JSON: {error}{hint}", text, source) from None
    if not isinstance(content, dict):
        raise _error(f"{source} must be a JSON object", text, source)
    return content


def jobs_of(content: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """The `cluster` entry.

    Raises:
        ClusterError: it is missing or empty.
    """
    jobs = content.get("cluster")
    if jobs is None:
        raise _error(f"{source} has no `cluster`", short(dict(content)), source)
    if isinstance(jobs, Mapping) and not jobs:
        raise _error(
            "The cluster is empty", short(dict(content)), source, "Unset it to train alone"
        )
    return jobs


def task_of(content: Mapping[str, Any], source: str) -> tuple[str, int]:
    """The `task` entry as role and index; an index written as digits in a string is accepted.

    Raises:
        ClusterError: it is missing, or has no role, or an index that is no integer.
    """
    jobs = content.get("cluster")
    task = content.get("task")
    if not isinstance(task, Mapping) or not isinstance(task.get("type"), str):
        known = ", ".join(jobs) if isinstance(jobs, Mapping) else "chief, worker"
        problem = f"`task` must say which of the cluster's processes this is, by type ({known})"
        raise _error(problem, f"task={short(task)}", source, jobs=jobs)
    index = task.get("index")
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int):
        raise _error(
            "The task's index must be an integer, counted from 0",
            f"index={short(index)} ({type(index).__name__})",
            source,
            jobs=jobs,
            task=(task["type"], 0),
        )
    return task["type"], index


def check_jobs(jobs: Any, source: str) -> Jobs:
    """Checks the roles and addresses.

    Args:
        jobs: addresses by role.
        source: where they came from, for messages.

    Returns:
        The jobs with tuples of addresses, in the order of `ROLES`.

    Raises:
        ClusterError: an unknown role, two chiefs, no worker, a malformed or repeated address, or
            localhost beside other hosts.
    """
    if not isinstance(jobs, Mapping):
        raise _error(
            "The cluster must be an object of addresses by role",
            f"cluster={short(jobs)} ({type(jobs).__name__})",
            source,
        )
    for role in jobs:
        if role not in ROLES:
            raise _unknown_role(role, source, jobs)
    checked = {role: _addresses(role, jobs[role], source) for role in ROLES if role in jobs}
    if len(checked.get("chief", ())) > 1:
        fixed = {**checked, "chief": checked["chief"][:1]}
        fixed["worker"] = (*checked["chief"][1:], *checked.get("worker", ()))
        problem = "A cluster has at most one chief"
        raise _error(problem, f"chief={list(checked['chief'])}", source, jobs=fixed)
    if "chief" not in checked and "worker" not in checked:
        problem = "A cluster needs at least one worker or a chief; nothing in this one trains"
        raise _error(problem, f"roles: {', '.join(checked)}", source)
    _check_distinct(checked, source)
    return checked


def check_task(jobs: Jobs, task_type: str | None, index: int, source: str) -> None:
    """Checks that the task is one of the cluster's.

    Raises:
        ClusterError: the role is unknown or not in the cluster, or the index is out of range.
    """
    if task_type not in ROLES:
        raise _unknown_role(task_type, source, jobs)
    if task_type not in jobs and task_type != "evaluator":
        first = next(iter(jobs), "worker")
        problem = f"The task's type is not a role of this cluster, which has: {', '.join(jobs)}"
        raise _error(
            problem, f"type={task_type!r}, index={index}", source, jobs=jobs, task=(first, 0)
        )
    count = len(jobs.get(task_type, ()))
    is_integer = isinstance(index, int) and not isinstance(index, bool)
    if is_integer and index >= 0 and (index < count or not count):
        return
    allowed = f"from 0 to {count - 1}" if count else "counted from 0"
    problem = f"The task's index is out of range: {task_type} indices are integers {allowed}"
    raise _error(
        problem,
        f"type={task_type!r}, index={short(index)}",
        source,
        jobs=jobs,
        task=(task_type, max(count - 1, 0)),
    )


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port" (or "[v6]:port").

    Raises:
        ValueError: the address is malformed; the message says how.
    """
    if "://" in address:
        raise ValueError("has a scheme; leave it out")
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise ValueError("is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("is an IPv6 address without brackets; write [ADDRESS]:PORT")
    if not host or re.search(r"[\s/,@]", host):
        raise ValueError("has a host name that can't be one")
    if not (port.isascii() and port.isdecimal()):
        raise ValueError("has a port that is not a number")
    if not 1 <= int(port) <= 65535:
        raise ValueError("has a port outside 1 to 65535")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether the host, as written, means the machine that reads it."""
    return _LOOPBACK.fullmatch(host.lower()) is not None


def _addresses(role: str, value: Any, source: str) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple)):
        listed = [value] if isinstance(value, str) else ["10.0.0.1:12345"]
        problem = f"The addresses of `{role}` must be a list"
        raise _error(problem, f"{role}={short(value)}", source, jobs={role: listed})
    if not value:
        raise _error(f"The role `{role}` has no addresses", f"{role}=[]", source)
    for address in value:
        if not isinstance(address, str):
            problem = f"An address of `{role}` must be a string HOST:PORT"
            raise _error(problem, f"{short(address)} ({type(address).__name__})", source)
        try:
            split_address(address)
        except ValueError as error:
            problem = f"An address of `{role}` {error}"
            raise _error(
                problem,
                f"{address!r} ({role} {list(value).index(address)})",
                source,
                "Write HOST:PORT with a port from 1 to 65535",
            ) from None
    return tuple(value)


def _check_distinct(jobs: Jobs, source: str) -> None:
    seen: dict[tuple[str, int], str] = {}
    local: list[str] = []
    remote: list[str] = []
    for role, addresses in jobs.items():
        for index, address in enumerate(addresses):
            host, port = split_address(address)
            key = ("localhost" if host.lower() in _SAME_HOST else host.lower(), port)
            if key in seen:
                problem = "Two tasks of a cluster can't have the same address"
                received = f"{address!r} for {seen[key]} and for {role} {index}"
                raise _error(problem, received, source)
            seen[key] = f"{role} {index}"
            (local if is_loopback(host) else remote).append(f"{role} {index} at {address}")
    if local and remote:
        raise _error(
            "A cluster of several hosts can't have local addresses, which each host takes for "
            "itself",
            f"{local[0]} beside {remote[0]}",
            source,
            "Write each host's own name or network address",
        )


def _unknown_role(role: Any, source: str, jobs: Any) -> ClusterError:
    hint = did_you_mean(str(role), ROLES)
    if role == "master":
        hint = "TensorFlow 1's `master` is called `chief`. " + hint
    known = nearest(str(role), ROLES) or "worker"
    where = "the cluster" if isinstance(jobs, Mapping) and role in jobs else "the task"
    fixed = None
    if isinstance(jobs, Mapping):
        fixed = {known if name == role else name: value for name, value in jobs.items()}
    return _error(f"Unknown role in {where}", repr(role), source, hint, jobs=fixed)


def _error(
    problem: str,
    received: str,
    source: str,
    fix: str = "",
    *,
    jobs: Any = None,
    task: tuple[str, int] | None = None,
) -> ClusterError:
    example = _example(jobs if isinstance(jobs, Mapping) and jobs else _EXAMPLE_JOBS, task)
    return ClusterError(
        explain(
            problem,
            received=received if len(received) <= 400 else received[:397] + "...",
            source=source,
            fix=(fix.rstrip(".") + ". " if fix else "") + f"Such as TF_CONFIG='{example}'",
        )
    )


def _example(jobs: Mapping[str, Any], task: tuple[str, int] | None) -> str:
    trainable = [role for role in jobs if role in ("chief", "worker")]
    role, index = task or (trainable[0] if trainable else "worker", 0)
    if not trainable:
        jobs = {**_EXAMPLE_JOBS, **jobs}
    content = {"cluster": {name: _few(value) for name, value in jobs.items()}}
    return json.dumps({**content, "task": {"type": role, "index": index}}, default=str)


def _few(addresses: Any) -> Any:
    """An example stays readable with the addresses of a large cluster left out."""
    if isinstance(addresses, (list, tuple)) and len(addresses) > 6:
        return [*addresses[:3], "...", addresses[-1]]
    return addresses
