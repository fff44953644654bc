"""The doctor on several hosts: each one's findings, and in what the hosts differ."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.cluster.hosts import Host, parse_hostfile, parse_hosts
from tfdist.doctor.findings import Finding
from tfdist.doctor.report import findings_text
from tfdist.errors import ConfigError, explain
from tfdist.launcher import ssh
from tfdist.launcher.ssh import SshOptions

__all__ = ["Answer", "clock_differences", "differences", "hosts_of", "report"]

_CLOCK_TOLERANCE = 5.0
_CLOCK_TIMEOUT = 30.0
_OTHER_QUESTIONS = 90.0  # seconds for what a host is asked besides TensorFlow

# What must be alike for hosts to train together, or is worth knowing when it is not. The first part
# of each name decides whether a difference is wrong.
_COMPARED = (
    ("python", True),
    ("packages.tfdist", True),
    ("packages.tensorflow", True),
    ("packages.keras", True),
    ("packages.numpy", False),
    ("packages.nvidia-nccl-cu12", True),
    ("tensorflow.cuda", True),
    ("gpu_tool.driver", False),
    ("gpus", True),
    ("host.cpu", False),
    ("host.allowed_cores", False),
    ("host.memory", False),
    ("limits.open_files", False),
    ("environment.KERAS_BACKEND", True),
    ("environment.TF_USE_LEGACY_KERAS", True),
    ("environment.NCCL_SOCKET_IFNAME", False),
)


@dataclass(frozen=True)
class Answer:
    """What a host said.

    Attributes:
        host: its name.
        report: the report of `tfdist doctor --json` there; None when there is none.
        problem: why there is none.
    """

    host: str
    report: Mapping[str, Any] | None = None
    problem: str = ""


def hosts_of(text: str | None, file: Path | None) -> tuple[Host, ...]:
    """The hosts of --hosts or --hostfile.

    Raises:
        ClusterError: the list is wrong.
        ConfigError: the file can't be read.
    """
    if file is None:
        return parse_hosts(text or "")
    try:
        return parse_hostfile(file.read_text(), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            explain(
                f"The hostfile can't be read: {getattr(error, 'strerror', None) or error}",
                received=str(file),
                source="--hostfile",
                fix="Give a text file with a host on each line",
            )
        ) from None


def differences(answers: Sequence[Answer]) -> list[tuple[str, dict[str, str], bool]]:
    """In what the hosts differ.

    Args:
        answers: what each host said; those without a report are left out.

    Returns:
        For each fact that is not the same everywhere: its name, the value by host, and whether that
        is wrong (otherwise it may be meant so).
    """
    reports = {answer.host: answer.report for answer in answers if answer.report is not None}
    found = []
    for name, must_agree in _COMPARED:
        values = {
            host: _value(report["facts"], name)
            for host, report in reports.items()
            # What TensorFlow says is not there where it can't be imported, which is told elsewhere.
            if not name.startswith("tensorflow.") or not report["facts"]["tensorflow"]["problem"]
        }
        if len(set(values.values())) > 1:
            found.append((name, values, must_agree))
    return found


def _value(facts: Mapping[str, Any], name: str) -> str:
    if name == "gpus":
        names = [str(gpu["name"]) for gpu in facts["gpu_tool"]["gpus"]]
        return ", ".join(f"{names.count(n)} x {n}" for n in sorted(set(names))) or "none"
    value: Any = facts
    group, _, rest = name.partition(".")
    for part in (group, rest) if rest else (group,):
        value = value.get(part, "") if isinstance(value, Mapping) else ""
    if name == "host.memory" and isinstance(value, int):
        return f"{value / 2**30:.0f} GiB"  # what is left of it differs by a few pages everywhere
    return str(value) if value not in ("", None) else "-"


def clock_differences(
    times: Mapping[str, tuple[float, float, float]], tolerance: float = _CLOCK_TOLERANCE
) -> dict[str, float]:
    """The hosts whose clocks are off, and by how many seconds against this machine's.

    Args:
        times: (sent, answered, the host's own time) by host: its clock is right if its time lies
            between the two.
        tolerance: seconds that are no fault.
    """
    wrong = {}
    for host, (sent, answered, own) in times.items():
        off = own - answered if own > answered else min(0.0, own - sent)
        if abs(off) > tolerance:
            wrong[host] = round(off, 1)
    return wrong


def findings_between(answers: Sequence[Answer], clocks: Mapping[str, float]) -> list[Finding]:
    """What is wrong between the hosts: those that don't answer, differences, clocks."""
    findings = [
        Finding(
            f"{answer.host} gave no report: {answer.problem}",
            f"Try `ssh {shlex.quote(answer.host)}` by hand; tfdist must be installed there for the "
            "interpreter that --python names (the one of this command by default)",
            check="host",
        )
        for answer in answers
        if answer.report is None
    ]
    for name, values, is_wrong in differences(answers):
        if is_wrong:
            told = ", ".join(f"{host}: {value}" for host, value in values.items())
            findings.append(
                Finding(
                    f"The hosts differ in {name}: {told}",
                    "Make it the same on all of them: they compute and talk as one program",
                    check="difference",
                )
            )
    for host, seconds in clocks.items():
        findings.append(
            Finding(
                f"The clock of {host} is {seconds:+.0f} s off against this machine's",
                "Synchronise the clocks (chronyd, ntpd)",
                "warning",
                check="clock",
            )
        )
    return findings


def report(
    hosts: Sequence[Host], *, python: str, options: SshOptions, as_json: bool, timeout: float
) -> int:
    """Asks all hosts at once, and prints what each says and in what they differ.

    Args:
        hosts: the hosts.
        python: the interpreter there.
        options: how to call ssh.
        as_json: whether to print JSON.
        timeout: seconds for the import of TensorFlow there.

    Returns:
        The exit code: 0 when nothing is wrong on any of them, or between them.
    """
    clocks = clock_differences(_times(hosts, options))
    answers = _ask(hosts, python, options, timeout)
    between = findings_between(answers, clocks)
    is_fine = not between and all(a.report is not None and a.report["ok"] for a in answers)
    if as_json:
        content = {
            "ok": is_fine,
            "findings": [vars(finding) for finding in between],
            "differences": [
                {"fact": name, "values": values, "wrong": wrong}
                for name, values, wrong in differences(answers)
            ],
            "hosts": {answer.host: answer.report for answer in answers},
        }
        print(json.dumps(content, indent=2))
    else:
        print(as_text(answers, between))
    return 0 if is_fine else 1


def _times(hosts: Sequence[Host], options: SshOptions) -> dict[str, tuple[float, float, float]]:
    """When each host was asked for its time, when it had answered, and its answer."""
    replies = ssh.run_on_hosts(hosts, ["date", "+%s"], timeout=_CLOCK_TIMEOUT, options=options)
    found = {}
    for reply in replies:
        words = reply.stdout.split()
        if reply.returncode == 0 and words and words[-1].isdecimal():
            found[reply.host.name] = (reply.sent, reply.answered, float(words[-1]))
    return found


def _ask(hosts: Sequence[Host], python: str, options: SshOptions, timeout: float) -> list[Answer]:
    """Runs the doctor on every host."""
    command = [python, "-m", "tfdist", "doctor", "--json", f"--timeout={timeout:g}"]
    replies = ssh.run_on_hosts(hosts, command, timeout=timeout + _OTHER_QUESTIONS, options=options)
    return [_answer(reply) for reply in replies]


def _answer(reply: ssh.Reply) -> Answer:
    name = reply.host.name
    if reply.problem:
        return Answer(name, problem=reply.problem)
    # A login script may have said something before.
    start = reply.stdout.find("{\n")
    try:
        report = json.loads(reply.stdout[start:] if start >= 0 else "")
        if not {"ok", "findings", "checks", "facts"} <= report.keys():
            raise ValueError
    except (ValueError, AttributeError):
        lines = [line for line in (reply.stdout + "\n" + reply.stderr).splitlines() if line.strip()]
        end = lines[-1].strip()[:300] if lines else "it printed nothing"
        return Answer(name, problem=f"exit code {reply.returncode}: {end}")
    return Answer(name, report)


def as_text(answers: Sequence[Answer], between: Sequence[Finding]) -> str:
    """The report of several hosts as text."""
    parts = []
    for answer in answers:
        if answer.report is None:
            continue
        findings = [Finding(**item) for item in answer.report["findings"]]
        checks = len(answer.report["checks"])
        text = findings_text(findings, checks)
        facts = answer.report["facts"]
        about = (
            f"tfdist {_value(facts, 'packages.tfdist')}, "
            f"TensorFlow {_value(facts, 'packages.tensorflow')}, "
            f"{_value(facts, 'host.allowed_cores')} cores, GPUs: {_value(facts, 'gpus')}"
        )
        parts.append(f"{answer.host}: {about}\n{text}")
    rows = differences(answers)
    if rows:
        parts.append("The hosts differ:\n" + _table(rows))
    elif len([a for a in answers if a.report is not None]) > 1:
        parts.append("The hosts don't differ.")
    if between:
        parts.append(findings_text(between, None))
    return "\n\n".join(parts)


def _table(rows: Sequence[tuple[str, Mapping[str, str], bool]]) -> str:
    hosts = list(dict.fromkeys(host for _, values, _ in rows for host in values))
    lines = [["", *hosts]]
    lines += [[name, *(values.get(host, "?") for host in hosts)] for name, values, _ in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(hosts) + 1)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip() for line in lines
    )
