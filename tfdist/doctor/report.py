"""Facts and findings as text for a bug report, and as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from tfdist.config.sizes import format_bytes
from tfdist.doctor.checks import CHECKS
from tfdist.doctor.checks_machine import suited_precision, visible_gpus
from tfdist.doctor.facts import Facts
from tfdist.doctor.findings import Finding

__all__ = ["as_json", "as_text", "findings_text", "to_dict"]

_PLAIN_WIDTH = 100


def to_dict(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "ok": not findings,
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "checks": [check.name for check in CHECKS],
        "precision": suited_precision(facts),
        "facts": facts.to_dict(),
    }


def as_json(facts: Facts, findings: Sequence[Finding]) -> str:
    """The report as JSON."""
    return json.dumps(to_dict(facts, findings), indent=2)


def as_text(facts: Facts, findings: Sequence[Finding]) -> str:
    """The report as text, coloured on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(facts):
        if value:
            table.add_row(name, Text(value))
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else _PLAIN_WIDTH
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal)
    console.print(table)
    if facts.gpu_tool.topology:
        console.print(Text(f"\n{facts.gpu_tool.topology}"))
    console.print(Text("\n" + findings_text(findings)))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def findings_text(findings: Sequence[Finding], checks: int | None = len(CHECKS)) -> str:
    """The findings, numbered, with what to do; or that there are none.

    Args:
        findings: what was found.
        checks: by how many checks; None doesn't say.
    """
    if not findings:
        return f"Nothing is wrong by {checks} checks."
    lines = [f"{len(findings)} of {checks} checks found something:"] if checks else []
    for number, finding in enumerate(findings, 1):
        problem = finding.problem.rstrip(".")
        lines.append(f"{number}. {finding.severity} [{finding.check}] {problem}.")
        lines.append(f"   -> {finding.fix.rstrip('.')}.")
    return "\n".join(lines)


def _rows(facts: Facts) -> Iterable[tuple[str, str]]:
    host, limits, cluster = facts.host, facts.limits, facts.cluster
    yield (
        "time",
        datetime.datetime.fromtimestamp(facts.time, datetime.timezone.utc).isoformat(
            " ", "seconds"
        ),
    )
    where = ", in a container" if host.container else ""
    yield "host", f"{host.name} ({', '.join(host.addresses) or 'does not resolve'}){where}"
    yield "system", host.system
    yield "python", f"{facts.python}, {facts.executable}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in facts.packages.items())
    yield "tensorflow", _tensorflow(facts)
    yield "processor", ", ".join(filter(None, (host.cpu, " ".join(host.cpu_flags))))
    numa = f"{host.numa_nodes} NUMA node{'s' if host.numa_nodes > 1 else ''}"
    yield "cores", f"{host.allowed_cores} of {host.cores} usable, {numa}"
    yield "memory", f"{format_bytes(host.memory_free)} free of {format_bytes(host.memory)}"
    if facts.shared_memory:
        size, free = facts.shared_memory
        yield "/dev/shm", f"{format_bytes(free)} free of {format_bytes(size)}"
    yield "GPUs", _gpus(facts)
    for name, verdict in suited_precision(facts).items():
        yield name, verdict
    yield "network", "; ".join(_interface(item) for item in facts.interfaces)
    yield "InfiniBand", ", ".join(facts.infiniband)
    yield (
        "limits",
        f"{_limit(limits.open_files)} open files, {_limit(limits.processes)} processes, "
        + f"{_limit(limits.locked_memory)} bytes of locked memory",
    )
    for disk in facts.disks:
        free_text = (
            format_bytes(disk.free) + " free" if disk.free >= 0 else disk.problem or "remote"
        )
        yield disk.purpose, f"{disk.path}: {free_text}"
    yield "cluster", cluster.problem or f"{cluster.task}, by {cluster.source}"
    for task in cluster.tasks:
        state = ", ".join(task.resolved) or "does not resolve"
        yield f"  {task.name}", f"{task.address} ({state}){' listens' if task.listens else ''}"
    yield "settings", ", ".join(f"{name}={value}" for name, value in cluster.settings.items())
    for name, value in facts.environment.items():
        yield "environment", f"{name}={value}"


def _tensorflow(facts: Facts) -> str:
    found = facts.tensorflow
    if not found.version:
        return "can't be imported"
    cuda = f"built for CUDA {found.cuda or '?'}" if found.built_with_cuda else "built without CUDA"
    tpus = f", {found.tpus} TPUs" if found.tpus else ""
    seen = f"sees {len(found.gpus)} GPUs{tpus}"
    keras = f"Keras {found.keras} on {found.backend}" if found.keras else "no Keras"
    return f"{found.version}, {cuda}, {seen}; {keras}; imported in {found.seconds:.1f} s"


def _gpus(facts: Facts) -> str:
    tool = facts.gpu_tool
    if not tool.path:
        return "none (no nvidia-smi)"
    if tool.problem:
        return f"unknown: {tool.problem}"
    visible = {gpu.index for gpu in visible_gpus(facts)[0]}
    listed = [
        f"{gpu.index}: {gpu.name}, {gpu.memory_used} of {gpu.memory} MiB used"
        + ("" if gpu.index in visible else ", hidden")
        for gpu in tool.gpus
    ]
    return f"driver {tool.driver}; " + "; ".join(listed or ["none"])


def _interface(item: Any) -> str:
    speed = f" {item.speed} Mbit/s" if item.speed else ""
    return f"{item.name} {', '.join(item.addresses) or 'no address'}{speed}"


def _limit(value: int) -> str:
    return "unlimited" if value < 0 else str(value)
