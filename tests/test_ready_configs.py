"""The Config files in configs/: each loads, its comments' commands work, and what runs here is dry-run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import child_environment, deadline

from tfdist.cli import main
from tfdist.config import Config
from tfdist.strategies import registry

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "configs").iterdir())
NAMES = [path.name for path in FILES]

# What this machine has instead of GPUs; and what each strategy needs around it.
HERE = ["--devices=cpu:2", "--implementation=auto", "--model=mlp", "--dry_run"]
RUN = [sys.executable, "-m", "tfdist", "run"]
START = {
    "mirrored": [sys.executable, "scripts/train.py"],
    "multi_worker": [*RUN, "-n", "1", "scripts/train.py"],
    "parameter_server": [*RUN, "--workers", "2", "--ps", "1", "scripts/train.py"],
}


def commands(path: Path) -> list[list[str]]:
    """The commands in the comment at the head of a file."""
    head = path.read_text().partition("\nstrategy:")[0].replace("\\\n#", "")
    lines = [line.removeprefix("#").strip() for line in head.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(("tfdist", "python"))]


def test_there_is_one_for_each_common_cluster() -> None:
    assert NAMES == [
        "4-hosts-8-gpus.yaml",
        "8-gpus-one-host.yaml",
        "cpu-slurm.yaml",
        "hybrid-2x4.yaml",
        "parameter-servers.yaml",
        "tpu-v5e-slice.yaml",
    ]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_it_loads_and_says_what_it_is_for(path: Path) -> None:
    config = Config.load(path)
    assert config.strategy in registry.NAMES
    assert re.match(r"# \S", path.read_text())
    assert commands(path)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_its_commands_name_it_and_its_manifests_can_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    for words in commands(path):
        assert f"--config=configs/{path.name}" in words
        if words[:2] == ["tfdist", "manifest"]:
            assert main([*words[1:-1], "--dry-run", words[-1]]) == 0
            assert f"TFDIST_STRATEGY={Config.load(path).strategy}" in re.sub(
                r"- name: (\w+)\s+value: ", r"\1=", capsys.readouterr().out
            )
        else:
            assert Path(words[1]).exists()


def start(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        command,
        cwd=ROOT,
        env=child_environment({}),
        capture_output=True,
        text=True,
        timeout=deadline(120),
    )


@pytest.mark.parametrize(
    "path", [path for path in FILES if Config.load(path).strategy in START], ids=lambda p: p.name
)
def test_it_builds_its_strategy(path: Path) -> None:
    done = start([*START[Config.load(path).strategy], f"--config={path}", *HERE])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "steps per epoch" in done.stdout
    assert re.search(
        rf"strategy +{Config.load(path).strategy} +\S*{re.escape(path.name)}", done.stdout
    )


def test_the_tpu_one_says_that_there_is_no_tpu_here() -> None:
    done = start(
        [sys.executable, "scripts/train.py", f"--config={ROOT}/configs/tpu-v5e-slice.yaml"]
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "No TPU was found" in done.stderr
