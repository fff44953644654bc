"""A script per role: a chief trains and saves, others serve it, and what it saved is tested."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import child_environment, deadline, end, held_ports

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(script: str, *words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPTS / script), *words],
        cwd=folder,
        env=child_environment(variables),
        capture_output=True,
        text=True,
        timeout=deadline(150),
    )


def test_a_chief_is_served_and_its_model_is_tested(tmp_path: Path) -> None:
    with held_ports(3) as (chief, worker, ps), (tmp_path / "served.log").open("w") as log:
        cluster = {"chief": [chief], "worker": [worker], "ps": [ps]}

        def variables(role: str) -> dict[str, str]:
            return {
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
            }

        serving = {
            role: subprocess.Popen(
                [sys.executable, str(SCRIPTS / "serve.py"), "--start_timeout=120"],
                cwd=tmp_path,
                env=child_environment(variables(role)),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            for role in ("worker", "ps")
        }
        try:
            words = ("--model=mlp", "--epochs=1", "--save=model.keras", "--global_batch_size=64")
            done = run("train.py", *words, folder=tmp_path, **variables("chief"))
            assert done.returncode == 0, done.stdout + done.stderr
            codes = {role: task.wait(deadline(30)) for role, task in serving.items()}
        finally:
            end(list(serving.values()))
    assert codes == {"worker": 0, "ps": 0}, (tmp_path / "served.log").read_text()
    accuracy = float(re.findall(r"test accuracy: ([\d.]+)", done.stdout)[0])
    tested = run(
        "evaluate.py",
        "--model_path=model.keras",
        "--strategy=mirrored",
        "--devices=cpu:2",
        folder=tmp_path,
    )
    assert tested.returncode == 0, tested.stderr
    assert json.loads(tested.stdout)["accuracy"] == pytest.approx(accuracy, abs=1e-3)


@pytest.mark.parametrize(
    ("script", "words", "message"),
    [
        ("serve.py", [], "Only a worker or ps"),
        ("serve.py", ["now"], "takes flags only"),
        ("evaluate.py", ["--model_path=nowhere.keras"], "no such model"),
    ],
)
def test_mistakes(script: str, words: list[str], message: str, tmp_path: Path) -> None:
    done = run(script, *words, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
