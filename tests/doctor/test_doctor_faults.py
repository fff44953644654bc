"""Faults planted in the environment of a process, each of which the doctor finds by its name."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.processes import child_environment, deadline, held_ports, tf_config

from tfdist.cli import main
from tfdist.doctor import Finding, diagnose, gather, probes, software
from tfdist.doctor.facts import Facts, TensorFlowFacts

# What a machine that runs the tests may really have; the tests of these plant their own.
MACHINE = {"shared-memory", "open-files", "disk-space", "memory", "host-name", "gpus-unused"}
FINE = TensorFlowFacts("2.21.0", "3.15.1", "tensorflow", "3.15.1", built_with_cuda=True)


@pytest.fixture
def found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Mapping[str, str]], dict[str, Finding]]:
    """Gathers the real facts with variables added, but for TensorFlow's; returns the findings."""
    monkeypatch.setattr(probes, "ask_tensorflow", lambda *_: FINE)
    monkeypatch.chdir(tmp_path)
    plain = child_environment({"HOME": str(tmp_path)})
    plain.pop("CUDA_VISIBLE_DEVICES")

    def look(extra: Mapping[str, str]) -> dict[str, Finding]:
        facts = gather({**plain, **extra}, timeout=deadline(20))
        json.dumps(facts.to_dict())
        return {finding.check: finding for finding in diagnose(facts)}

    own = set(look({})) & MACHINE

    def planted(extra: Mapping[str, str]) -> dict[str, Finding]:
        findings = look(extra)
        return {name: item for name, item in findings.items() if name not in own}

    return planted


def test_a_sound_machine_has_no_findings(found: Callable) -> None:
    assert found({}) == {}
    with held_ports(2) as addresses:
        assert found({"TF_CONFIG": tf_config(addresses, 0)}) == {}


@pytest.mark.parametrize(
    ("variables", "check", "words"),
    [
        ({"TF_CONFIG": "{'cluster': 1}"}, "cluster", "JSON"),
        ({"TF_CONFIG": tf_config(["a:1", "a:1"], 0)}, "cluster", "a:1"),
        ({"TF_CONFIG": tf_config(["127.0.0.1:1234"], 3)}, "cluster", "3"),
        (
            {"TF_CONFIG": tf_config(["203.0.113.7:29871", "no-such-host.invalid:1"], 0)},
            "host-names",
            "no-such-host.invalid",
        ),
        ({"TF_CONFIG": tf_config(["203.0.113.7:29871"], 0)}, "own-address", "203.0.113"),
        ({"KERAS_BACKEND": "jax"}, "keras-backend", "KERAS_BACKEND=jax"),
        ({"TF_USE_LEGACY_KERAS": "1"}, "legacy-keras", "TF_USE_LEGACY_KERAS=1"),
        ({"OMP_NUM_THREADS": "4096"}, "threads", "OMP_NUM_THREADS=4096"),
        ({"TF_NUM_INTRAOP_THREADS": "all"}, "threads", "no number of threads"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "slurm-without-srun", "has 4 tasks"),
        ({"TFDIST_PRECISION": "mixed_fp8"}, "settings", "mixed_fp8"),
        ({"TFDIST_PRECISON": "float32"}, "settings", "did you mean TFDIST_PRECISION"),
        ({"TFDIST_PRECISION": "mixed_float16"}, "precision", "not suited"),
        ({"TFDIST_STRATEGY": "multi_worker"}, "settings", "needs a cluster"),
        ({"TFDS_DATA_DIR": "/proc/nothing/here"}, "disk-space", "TFDS_DATA_DIR"),
        ({"TMPDIR": "/etc/hostname"}, "disk-space", "TMPDIR (/etc/hostname)"),
        ({"NCCL_SOCKET_IFNAME": "ib7"}, "nccl-interface", "ib7"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_variable(
    found: Callable, variables: dict[str, str], check: str, words: str
) -> None:
    findings = found(variables)
    assert check in findings, findings
    assert words in findings[check].problem
    assert findings[check].fix
    assert set(findings) <= {check, "own-address"}, "one fault, one finding"


def test_a_port_in_use(found: Callable) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        findings = found({"TF_CONFIG": tf_config([address, "127.0.0.1:9"], 0)})
        assert set(findings) == {"port"}
        assert address.rpartition(":")[2] in findings["port"].problem


def test_files_that_hide_modules(found: Callable, tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text("")
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("")
    problem = found({})["shadowed-modules"].problem
    assert "keras.py" in problem
    assert str(tmp_path / "tensorflow") in problem


def test_packages_in_other_versions() -> None:
    assert software.unmet() == []
    assert software.unmet(["numpy<1", "no-such-package>=2", "rich; python_version < '3'"]) == [
        f"numpy <1 is wanted, {software.packages()['numpy']} is installed",
        "no-such-package >=2 is wanted, and it is not installed",
    ]
    (finding,) = diagnose(Facts(unmet=("keras <3.16,>=3.15 is wanted, 2.15.0 is installed",)))
    assert finding.check == "requirements"


def test_secrets_stay_out_of_the_report() -> None:
    variables = {
        "http_proxy": "http://me:pass@proxy:3128",
        "TF_API_KEY": "abc",
        "SM_HOSTS": "[]",
        "AWS_SECRET_ACCESS_KEY": "abc",
    }
    assert software.relevant(variables) == {
        "SM_HOSTS": "[]",
        "TF_API_KEY": "***",
        "http_proxy": "http://***@proxy:3128",
    }


# ---- nvidia-smi


@pytest.fixture
def smi(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Puts a shell script in the place of nvidia-smi; returns the PATH with it."""

    def install(body: str) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
        (folder / "nvidia-smi").chmod(stat.S_IRWXU)
        return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}

    return install


def lines(*gpus: str) -> str:
    return "if [ $1 = topo ]; then echo 'GPU0 X NV4'; exit; fi\n" + "\n".join(
        f"echo '{gpu}'" for gpu in gpus
    )


A100 = "0, NVIDIA A100, GPU-aaaa1111, 40960, 3, 8.0, 550.54"
SECOND = "1, NVIDIA A100, GPU-bbbb2222, 40960, 3, 8.0, 550.54"
T4 = "1, Tesla T4, GPU-cccc3333, 15360, 9000, 7.5, 550.54"


@pytest.mark.parametrize(
    ("body", "variables", "check", "words"),
    [
        ("echo 'Failed: Driver/library version mismatch'; exit 18", {}, "nvidia-smi", "mismatch"),
        ("echo 'No devices were found'", {}, "nvidia-smi", "no devices were found"),
        ("echo 'WARNING: infoROM is corrupted at gpu'", {}, "nvidia-smi", "infoROM"),
        ("head -c 100000 /dev/urandom", {}, "nvidia-smi", "unexpected line"),
        ("exec >&-; exit 0", {}, "nvidia-smi", "printed nothing"),
        (lines(A100, SECOND), {"CUDA_VISIBLE_DEVICES": "0"}, "gpus-hidden", "hides 1 of the 2"),
        (lines(A100, SECOND), {"CUDA_VISIBLE_DEVICES": "0,5,1"}, "gpus-hidden", "not here: 5"),
        (lines(A100, SECOND), {}, "gpus-unused", "sees 0 of the 2"),
        (lines(A100, T4), {}, "gpus-mixed", "Tesla T4"),
        (lines(A100, T4), {}, "gpus-occupied", "9000 of 15360"),
        (lines(A100, T4), {"TFDIST_PRECISION": "mixed_bfloat16"}, "precision", "there is 7.5"),
        (lines(A100, SECOND), {"NCCL_P2P_DISABLE": "1"}, "nccl-switches", "NCCL_P2P_DISABLE"),
    ],
)  # fmt: skip
def test_gpus(
    found: Callable, smi: Callable, body: str, variables: dict[str, str], check: str, words: str
) -> None:
    findings = found({**smi(body), **variables})
    assert check in findings, findings
    assert words in findings[check].problem


def test_a_driver_that_never_answers(smi: Callable) -> None:
    from tfdist.doctor import nvidia

    tool = nvidia.read(smi("sleep 60 & sleep 60"), timeout=0.5)
    assert tool.problem == "no answer within 0 s" or "no answer" in tool.problem
    assert tool.gpus == ()


def test_gpus_are_listed_with_their_connections(smi: Callable) -> None:
    from tfdist.doctor import nvidia

    tool = nvidia.read(smi(lines(A100, SECOND.replace("8.0", "[N/A]"))))
    assert [(gpu.index, gpu.memory, gpu.compute_capability) for gpu in tool.gpus] == [
        (0, 40960, "8.0"),
        (1, 40960, ""),
    ]
    assert tool.driver == "550.54"
    assert "NV4" in tool.topology


# ---- TensorFlow


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("raise ImportError('libcudart.so.12: cannot open')", "cannot open"),
        ("import os; os.abort()", "killed by signal 6"),
        ("import time; time.sleep(60)", "no answer"),
        ("print('hello')", "AttributeError"),
    ],
)
def test_a_tensorflow_that_does_not_import(tmp_path: Path, module: str, words: str) -> None:
    (tmp_path / "tensorflow.py").write_text(module)
    environ = child_environment({"PYTHONPATH": str(tmp_path), "PYTHONFAULTHANDLER": "0"})
    facts = probes.ask_tensorflow(environ, timeout=2.0 if "sleep" in module else deadline(30))
    assert words in facts.problem
    (finding,) = diagnose(Facts(tensorflow=facts))
    assert finding.check == "tensorflow"
    assert "can't be imported" in finding.problem


# ---- the whole command


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess:
    environ = child_environment({"HOME": str(folder), **variables})
    environ.pop("CUDA_VISIBLE_DEVICES")
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=deadline(120)
    )


def test_the_command_on_a_sound_machine(tmp_path: Path) -> None:
    done = run([sys.executable, "-m", "tfdist", "doctor"], tmp_path)
    assert done.stderr == ""
    findings = set(re.findall(r"^\d+\. \w+ \[([\w-]+)\]", done.stdout, re.MULTILINE))
    assert findings <= MACHINE, done.stdout
    assert done.returncode == (1 if findings else 0)
    assert ("Nothing is wrong" in done.stdout) == (not findings)
    for word in ("tensorflow", "Keras 3.", "cores", "/dev/shm", "mixed_bfloat16", "no TF_CONFIG"):
        assert word in done.stdout


def test_the_command_finds_what_is_wrong_with_the_process(tmp_path: Path) -> None:
    """Limits and file systems that only another process can have, several at once."""
    script = "ulimit -n 200; "
    wanted = {"open-files", "tensorflow"}
    namespace = ["unshare", "--mount", "true"]
    if os.geteuid() == 0 and subprocess.run(namespace, capture_output=True).returncode == 0:
        (tmp_path / "small").mkdir()
        script += (
            "mount -t tmpfs -o size=1m none /dev/shm && "
            f"mount -t tmpfs -o size=64k none {tmp_path}/small && export TMPDIR={tmp_path}/small && "
        )
        wanted |= {"shared-memory", "disk-space"}
        command = ["unshare", "--mount", "sh", "-c"]
    else:
        command = ["sh", "-c"]
    script += f"exec {sys.executable} -m tfdist doctor --json"
    done = run([*command, script], tmp_path, XLA_FLAGS="--no_such_flag=1")
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is False
    found = {item["check"]: item["problem"] for item in report["findings"]}
    assert found.keys() >= wanted
    assert "TensorFlow can't compute" in found["tensorflow"]
    assert "no_such_flag" in found["tensorflow"]
    assert report["facts"]["limits"]["open_files"] == 200


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--timeout=0"], "positive number"),
        (["--timeout=nan"], "positive number"),
        (["--hosts="], "empty"),
        (["--hosts=a,a"], "named twice"),
        (["--hostfile=/no/such/file"], "/no/such/file"),
    ],
)
def test_wrong_options(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert message in capsys.readouterr().err
