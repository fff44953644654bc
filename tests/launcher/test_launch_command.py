import os
import sys
from pathlib import Path

import pytest

from tfdist.errors import LaunchError
from tfdist.launcher import resolve_command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "plain").write_text("")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("")
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


def test_a_script_runs_under_this_interpreter(folder):
    command = resolve_command(["train.py", "-n", "--help", "--", "x"])
    assert command == (sys.executable, "train.py", "-n", "--help", "--", "x")


def test_horovods_form(folder):
    for name in ("python", "python3"):
        assert resolve_command([name, "train.py", "-v"]) == (sys.executable, "train.py", "-v")


def test_an_interpreter_may_be_named_by_its_path(folder):
    assert resolve_command([sys.executable, "train.py"]) == (sys.executable, "train.py")


def test_options_of_the_interpreter_are_its_own(folder):
    command = resolve_command(["python", "-u", "missing.py"])
    assert command == (sys.executable, "-u", "missing.py")


def test_a_module(folder):
    assert resolve_command(["-n", "3"], "a.b") == (sys.executable, "-m", "a.b", "-n", "3")


def test_a_folder_with_a_main_runs_under_python(folder):
    assert resolve_command(["python", "app"]) == (sys.executable, "app")


def test_an_executable(folder, monkeypatch):
    here = str(folder / "program")
    assert resolve_command(["./program", "a"]) == ("./program", "a")
    assert resolve_command(["program", "a"]) == (here, "a")
    monkeypatch.setenv("PATH", str(folder) + os.pathsep + os.environ["PATH"])
    assert resolve_command(["program"]) == (here,)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], ["no program"]),
        (["missing.py"], ["does not exist", "missing.py"]),
        (["python", "missing.py"], ["does not exist", "missing.py"]),
        (["folder.py"], ["is a folder", "folder.py"]),
        (["plain"], ["not executable", "plain", "chmod"]),
        (["nothing-of-this-name"], ["not found", "nothing-of-this-name"]),
        (["./app"], ["is a folder"]),
        (["python9.99", "train.py"], ["not found", "python9.99"]),
    ],
)
def test_what_cannot_run_is_refused(folder, words, told):
    with pytest.raises(LaunchError) as error:
        resolve_command(words)
    for part in told:
        assert part in str(error.value)
