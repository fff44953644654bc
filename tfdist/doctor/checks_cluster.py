"""Checks of the cluster, its names and ports, and the network."""

from __future__ import annotations

from tfdist.cluster.check import is_loopback, split_address
from tfdist.doctor.facts import Facts, TaskFacts
from tfdist.doctor.findings import Finding

__all__ = [
    "description",
    "host_name",
    "host_names",
    "loopback",
    "nccl_interface",
    "nccl_switches",
    "own_address",
    "port",
    "settings",
    "slurm_without_srun",
]


def settings(facts: Facts) -> Finding | None:
    """TFDIST_ variables that are wrong, or don't fit the cluster."""
    problem = facts.cluster.settings_problem
    return (
        Finding(problem, "Correct the TFDIST_ variables of this environment") if problem else None
    )


def description(facts: Facts) -> Finding | None:
    """A TF_CONFIG, or a scheduler's environment, that makes no cluster."""
    problem = facts.cluster.problem
    return Finding(problem, "Correct the variables that the message names") if problem else None


def slurm_without_srun(facts: Facts) -> Finding | None:
    """A batch script that calls Python itself, so that one of several tasks runs."""
    environment = facts.environment
    tasks = environment.get("SLURM_NTASKS") or environment.get("SLURM_NPROCS") or ""
    if not tasks.isdecimal() or int(tasks) < 2 or facts.cluster.tasks or facts.cluster.problem:
        return None
    if "TF_CONFIG" in environment or "SLURM_JOB_ID" not in environment:
        return None
    return Finding(
        f"The Slurm job has {tasks} tasks, and this process is none of them: it would train alone, "
        "while the other nodes idle",
        "Start the script with srun: srun python train.py; `tfdist manifest slurm` writes it",
    )


def host_name(facts: Facts) -> Finding | None:
    """A machine that does not know its own name."""
    if facts.host.addresses or not facts.host.name:
        return None
    return Finding(
        f"This machine's own name, {facts.host.name}, does not resolve",
        f"Add it to /etc/hosts with its address: ADDRESS {facts.host.name}",
        "error" if _others(facts) else "warning",
    )


def host_names(facts: Facts) -> Finding | None:
    """Hosts of the cluster whose names mean nothing here."""
    names = sorted({_host(task) for task in facts.cluster.tasks if not task.resolved})
    if not names:
        return None
    return Finding(
        f"{len(names)} of the cluster's hosts don't resolve here: {', '.join(names[:10])}",
        "Correct the names, add them to DNS or /etc/hosts, or use addresses; in Kubernetes check "
        "the headless Service and its publishNotReadyAddresses",
    )


def own_address(facts: Facts) -> Finding | None:
    """A task whose own address belongs to another machine: two tasks' indices are swapped."""
    own = _own(facts)
    if own is None or not own.resolved or not facts.interfaces:
        return None
    here = {address for item in facts.interfaces for address in item.addresses}
    if here & set(own.resolved) or any(is_loopback(address) for address in own.resolved):
        return None
    return Finding(
        f"This process is {own.name} at {own.address}, which is no address of this machine "
        f"({', '.join(sorted(a for a in here if not is_loopback(a))) or 'only loopback ones'})",
        "Give this machine its own task index in TF_CONFIG; behind a NAT that forwards the port, "
        "this is no fault",
        "warning",
    )


def loopback(facts: Facts) -> Finding | None:
    """A cluster of several machines in which this one is known by a name that means itself only."""
    own = _own(facts)
    if own is None or not own.resolved or not all(is_loopback(item) for item in own.resolved):
        return None
    elsewhere = [
        task for task in _others(facts) if not any(is_loopback(item) for item in task.resolved)
    ]
    if not elsewhere:
        return None
    return Finding(
        f"{own.name} has the address {own.address}, which is {', '.join(own.resolved)} here: "
        f"{elsewhere[0].name} at {elsewhere[0].address} can't reach it by that",
        "Use an address that the others reach; on Debian, remove the line `127.0.1.1 HOSTNAME` from "
        "/etc/hosts",
    )


def port(facts: Facts) -> Finding | None:
    """A port of this task's that can't be used."""
    problem = facts.cluster.port_problem
    return Finding(problem, "A job that is running here already is no fault") if problem else None


def nccl_interface(facts: Facts) -> Finding | None:
    """A network interface named for NCCL or gloo that is not there."""
    text = facts.environment.get("NCCL_SOCKET_IFNAME", "").strip()
    if not text or not facts.interfaces:
        return None
    excludes, exact = text.startswith("^"), text.lstrip("^").startswith("=")
    words = [word for word in text.lstrip("^=").split(",") if word]
    there = [item.name for item in facts.interfaces]

    def matches(name: str) -> bool:
        return any(name == word if exact else name.startswith(word) for word in words)

    left = [name for name in there if matches(name) != excludes]
    if left:
        return None
    return Finding(
        f"NCCL_SOCKET_IFNAME={text} leaves no interface of this machine's: {', '.join(there)}",
        "Name one of them, or unset it",
    )


def nccl_switches(facts: Facts) -> Finding | None:
    """Switches that turn NCCL's fast ways off."""
    names = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")
    off = [name for name in names if facts.environment.get(name, "0") not in ("", "0")]
    if facts.environment.get("NCCL_IB_DISABLE") and not facts.infiniband:
        off = [name for name in off if name != "NCCL_IB_DISABLE"]
    if not off or len(facts.gpu_tool.gpus) == 0:
        return None
    return Finding(
        f"{', '.join(off)} turns off ways that NCCL is fast on",
        "Unset it, unless the machine hangs without it",
        "warning",
    )


def _own(facts: Facts) -> TaskFacts | None:
    named = (task for task in facts.cluster.tasks if task.name == facts.cluster.task)
    return next(named, None)


def _others(facts: Facts) -> list[TaskFacts]:
    return [task for task in facts.cluster.tasks if task.name != facts.cluster.task]


def _host(task: TaskFacts) -> str:
    return split_address(task.address)[0]
