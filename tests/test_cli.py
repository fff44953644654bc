"""The command line: what it lists, what it refuses, and how little it imports."""

import json
import subprocess
import sys

import pytest

import tfdist
from tfdist.cli import main

HEAVY = ("tensorflow", "keras", "numpy", "rich", "psutil", "tensorboard", "absl", "yaml", "h5py")
# Python itself and its site-packages hooks come on top; `import argparse` alone needs about 40.
IMPORT_BUDGET = 40


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a statement, over those before it."""
    code = (
        "import sys, json, contextlib, io\n"
        "before = set(sys.modules)\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    {statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "--help"],
        ["manifest", "k8s", "--help"],
        ["plan", "--help"],
        ["doctor", "--help"],
        ["--version"],
    ],
)
def test_help_loads_nothing_heavy_and_little_at_all(words):
    loaded = modules_after(f"from tfdist.cli import main; main({words!r})")
    assert loaded.isdisjoint(HEAVY)
    assert len(loaded) <= IMPORT_BUDGET, sorted(loaded)


def test_the_launcher_needs_neither_tensorflow_nor_rich():
    loaded = modules_after("import tfdist.launcher")
    assert loaded.isdisjoint(set(HEAVY) - {"psutil"})


def test_help_lists_what_there_is(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "run" in text
    assert "plan" in text
    assert "manifest" in text
    assert "doctor" in text
    for later in ("report",):
        assert later not in text


def test_help_of_run(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for option in ("-np", "--devices-per-worker", "--log-dir", "--start-timeout", "--no-prefix"):
        assert option in text


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"tfdist {tfdist.__version__}\n"


def test_no_subcommand_shows_the_help(capsys):
    assert main([]) == 2
    assert "usage: tfdist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fly"], ["fly", "run"]),
        (["run", "script.py", "-n", "2"], ["number of workers is missing", "before the script"]),
        (["run", "-n", "0", "script.py"], ["at least 1"]),
        (["run", "-n", "-2", "script.py"], ["at least 1"]),
        (["run", "-n", "two", "script.py"], ["-n", "two"]),
        (["run", "-n", "2"], ["no program"]),
        (["run", "-n", "2", "-m"], ["-m"]),
        (["run", "-n", "2", "missing.py"], ["missing.py", "does not exist"]),
        (["run", "-n", "2", "python", "missing.py"], ["missing.py", "does not exist"]),
        (["run", "-n", "2", "no-such-program"], ["no-such-program"]),
        (["run", "-n", "2", "."], ["is a folder"]),
        (["run", "-n", "2", "data.txt"], ["data.txt", "not executable"]),
        (["run", "-n", "2", "--env", "A", "script.py"], ["--env", "NAME=VALUE"]),
        (["run", "-n", "2", "--env", "TF_CONFIG={}", "script.py"], ["TF_CONFIG"]),
        (["run", "-n", "2", "--grace", "-1", "script.py"], ["--grace"]),
        (["run", "-n", "2", "--start-timeout", "0", "script.py"], ["--start-timeout"]),
        (["run", "-n", "2", "--devices-per-worker", "0", "script.py"], ["--devices-per-worker"]),
        (["run", "-n", "2", "--log-dir", "data.txt/logs", "script.py"], ["--log-dir", "data.txt"]),
        (["run", "-n", "2", "--logdir", "x", "script.py"], ["--logdir"]),
    ],
)
def test_a_mistake_is_told_on_one_line(tmp_path, words, told):
    (tmp_path / "script.py").write_text("print('must not run')")
    (tmp_path / "data.txt").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    for part in told:
        assert part in line
