"""The doctor on several hosts: what it says of each, and in what they differ."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

from support.processes import child_environment, deadline

from tfdist.doctor import fleet
from tfdist.doctor.facts import Facts, Gpu, GpuTool
from tfdist.doctor.fleet import Answer, clock_differences, differences, findings_between
from tfdist.doctor.report import to_dict

# Runs a command here as if on a host: `a` is sound, `b` has another Keras backend and a slow clock,
# `c` has no tfdist, `d` refuses.
SSH = """#!/bin/sh
for word; do host=$line; line=$word; done
[ $host = d ] || echo "Welcome to $host"
case $host in
  b) export KERAS_BACKEND=nothing; case $line in date*) echo 1000000000; exit;; esac;;
  c) echo 'No module named tfdist' >&2; exit 1;;
  d) echo 'ssh: connect to host d port 22: Connection refused' >&2; exit 255;;
esac
exec sh -c "$line"
"""


def answer(host: str, facts: Facts) -> Answer:
    return Answer(host, json.loads(json.dumps(to_dict(facts, []))))


def test_hosts_that_are_alike_do_not_differ() -> None:
    facts = Facts(python="3.11.7", packages={"tensorflow": "2.21.0"})
    answers = [answer("a", facts), answer("b", facts)]
    assert differences(answers) == []
    assert findings_between(answers, {}) == []
    assert "The hosts don't differ." in fleet.as_text(answers, [])


def test_what_differs_is_named_with_each_hosts_value() -> None:
    a100 = GpuTool("smi", "550", (Gpu(0, "A100"), Gpu(1, "A100")))
    answers = [
        answer("a", Facts(python="3.11.7", packages={"tensorflow": "2.21.0"}, gpu_tool=a100)),
        answer("b", Facts(python="3.11.7", packages={"tensorflow": "2.20.0"})),
        Answer("c", problem="no answer within 60 s"),
    ]
    assert differences(answers) == [
        ("packages.tensorflow", {"a": "2.21.0", "b": "2.20.0"}, True),
        ("gpu_tool.driver", {"a": "550", "b": "-"}, False),
        ("gpus", {"a": "2 x A100", "b": "none"}, True),
    ]
    findings = findings_between(answers, {"b": -40.0})
    assert [finding.check for finding in findings] == ["host", "difference", "difference", "clock"]
    text = fleet.as_text(answers, findings)
    assert "c gave no report: no answer within 60 s" in text
    assert "packages.tensorflow  2.21.0    2.20.0" in text


def test_clocks() -> None:
    times = {
        "right": (100.0, 103.0, 101.0),
        "rounded": (100.9, 101.0, 100.0),
        "late": (100.0, 103.0, 40.0),
        "early": (100.0, 103.0, 200.0),
    }
    assert clock_differences(times) == {"late": -60.0, "early": 97.0}


def test_the_command_over_ssh(tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(stat.S_IRWXU)
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2  # slow clock\nc\nd\n")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "doctor", "--json", "--hostfile=hosts"],
        cwd=tmp_path,
        env=child_environment({"PATH": path, "HOME": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=deadline(180),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert list(report["hosts"]) == ["a", "b", "c", "d"]
    assert "keras-backend" not in {item["check"] for item in report["hosts"]["a"]["findings"]}
    assert "keras-backend" in {item["check"] for item in report["hosts"]["b"]["findings"]}
    assert report["hosts"]["c"] is None
    problems = "\n".join(item["problem"] for item in report["findings"])
    assert "c gave no report: exit code 1: No module named tfdist" in problems
    assert "d gave no report: no sshd listens there" in problems
    assert "The hosts differ in environment.KERAS_BACKEND: a: -, b: nothing" in problems
    assert "The clock of b" in problems
    text = fleet.as_text([Answer(host, content) for host, content in report["hosts"].items()], [])
    assert re.search(r"^a: tfdist .*\n(Nothing is wrong by|\d+ of \d+ checks)", text, re.MULTILINE)
    assert "[keras-backend]" in text
