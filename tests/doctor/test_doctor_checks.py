"""Checks of what can't be planted on this machine: judged by facts alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.doctor import CHECKS, diagnose, machine, report
from tfdist.doctor.facts import (
    ClusterFacts,
    Disk,
    Facts,
    Gpu,
    GpuTool,
    HostFacts,
    Limits,
    TaskFacts,
    TensorFlowFacts,
)

GPUS = (Gpu(0, "A100", "GPU-aaaa1111", 40960, 0, "8.0"), Gpu(1, "A100", "GPU-b", 40960, 0, "8.0"))
TWO = GpuTool("/usr/bin/nvidia-smi", "550.54", GPUS)
SEEN = TensorFlowFacts("2.21.0", "3.15.1", "tensorflow", gpus=("a", "b"), built_with_cuda=True)
X86 = "Debian, Linux 6, x86_64"


@pytest.mark.parametrize(
    ("facts", "check"),
    [
        (Facts(python="3.9.2"), "python"),
        (Facts(python="3.14.0"), "python"),
        (Facts(host=HostFacts(cpu="Atom", system=X86)), "processor"),
        (Facts(host=HostFacts(name="me")), "host-name"),
        (Facts(host=HostFacts(memory=2**33, memory_free=2**28)), "memory"),
        (Facts(host=HostFacts(cores=64), environment={"SLURM_JOB_ID": "1"}), "cores"),
        (Facts(gpu_tool=TWO, tensorflow=SEEN, shared_memory=(2**26, 2**26)), "shared-memory"),
        (Facts(shared_memory=(2**32, 2**10)), "shared-memory"),
        (Facts(gpu_tool=TWO, tensorflow=TensorFlowFacts("2.21.0")), "gpus-unused"),
        (Facts(gpu_tool=GpuTool(device_files=2)), "nvidia-smi"),
        (Facts(cluster=ClusterFacts(settings={"strategy": "tpu"})), "tpu"),
        (Facts(infiniband=("mlx5_0",), limits=Limits(locked_memory=65536)), "locked-memory"),
        (Facts(limits=Limits(open_files=256)), "open-files"),
        (Facts(disks=(Disk("TMPDIR", "/tmp", 2**40, clock_offset=-90.0),)), "clock"),
        (Facts(time=86400.0), "clock"),
        (Facts(tensorflow=TensorFlowFacts("2.21.0", backend="torch")), "keras-backend"),
        (Facts(tensorflow=TensorFlowFacts("2.21.0", seconds=99)), "tensorflow"),
        (Facts(unanswered=("network: no answer within 30 s",)), "unanswered"),
    ],
)
def test_a_fact_that_is_wrong(facts: Facts, check: str) -> None:
    assert [finding.check for finding in diagnose(facts)] == [check]
    text = report.as_text(facts, diagnose(facts))
    assert f"[{check}]" in text


def test_a_name_that_means_this_machine_only() -> None:
    """Debian writes `127.0.1.1 HOSTNAME` into /etc/hosts."""
    own = TaskFacts("worker 0", "me:1", ("127.0.1.1",))
    other = TaskFacts("worker 1", "you:1", ("203.0.113.1",))
    cluster = ClusterFacts(task="worker 0", address="me:1", tasks=(own, other))
    assert [finding.check for finding in diagnose(Facts(cluster=cluster))] == ["loopback"]
    alone = ClusterFacts(task="worker 0", address="me:1", tasks=(own,))
    assert diagnose(Facts(cluster=alone)) == []


def test_many_tasks_need_more_files() -> None:
    tasks = tuple(TaskFacts(f"worker {n}", f"h{n}:1", ("203.0.113.1",)) for n in range(64))
    facts = Facts(cluster=ClusterFacts(tasks=tasks), limits=Limits(open_files=1024))
    assert [finding.check for finding in diagnose(facts)] == ["open-files"]


def test_an_empty_snapshot_is_no_fault_and_can_be_printed() -> None:
    assert diagnose(Facts()) == []
    assert "Nothing is wrong" in report.as_text(Facts(), [])
    assert report.to_dict(Facts(), [])["ok"] is True


def test_errors_come_first_and_brackets_are_text() -> None:
    facts = Facts(
        python="3.9.1",
        limits=Limits(open_files=10),
        environment={"XLA_FLAGS": "[bold]x[/] [/nothing]"},
    )
    findings = diagnose(facts)
    assert [finding.severity for finding in findings] == ["error", "warning"]
    assert "[bold]x[/] [/nothing]" in report.as_text(facts, findings)


def test_names_of_checks_are_distinct() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)


def test_a_uuid_names_a_gpu() -> None:
    facts = Facts(gpu_tool=TWO, tensorflow=SEEN, environment={"CUDA_VISIBLE_DEVICES": "GPU-aaaa"})
    assert [finding.check for finding in diagnose(facts)] == ["gpus-hidden"]
    shared = {**facts.environment, "TFDIST_LOCAL_RANK": "0"}
    facts = Facts(gpu_tool=TWO, tensorflow=SEEN, environment=shared)
    assert diagnose(facts) == [], "a launcher has shared them out"


@pytest.mark.parametrize(
    ("capability", "bfloat16", "float16"),
    [("8.0", True, True), ("7.5", False, True), ("6.1", False, False)],
)
def test_precisions(capability: str, bfloat16: bool, float16: bool) -> None:
    from tfdist.doctor.checks_machine import suited_precision

    tool = GpuTool("x", "1", (Gpu(0, "G", compute_capability=capability),))
    verdicts = suited_precision(Facts(gpu_tool=tool))
    assert verdicts["mixed_bfloat16"].startswith("suited") == bfloat16
    assert verdicts["mixed_float16"].startswith("suited") == float16


def test_a_clock_that_differs_from_the_file_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import time

    real = time.time
    (disk,) = (d for d in machine.disks({"TMPDIR": str(tmp_path)}) if d.purpose == "TMPDIR")
    assert disk.clock_offset == 0
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    (disk,) = (d for d in machine.disks({"TMPDIR": str(tmp_path)}) if d.purpose == "TMPDIR")
    assert disk.clock_offset == pytest.approx(-3600, abs=2)


def test_a_working_directory_that_has_been_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    disks = machine.disks({"TMPDIR": str(tmp_path), "HOME": str(tmp_path)})
    (finding,) = diagnose(Facts(disks=disks))
    assert "working directory (?): it has been removed" in finding.problem
