"""Which program the words after `tfdist run`'s own options mean."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist.errors import LaunchError, explain

_INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?$")
_SOURCES = (".py", ".pyz")


def resolve_command(words: Sequence[str], module: str | None = None) -> tuple[str, ...]:
    """Turns the user's words into a command line.

    A `.py` file and a module run under this interpreter. So does a bare `python` or `python3`
    (`tfdist run -np 4 python train.py`): the workers need the environment that has tfdist, which
    need not be the first one on PATH. Everything after the program is left as it is.

    Args:
        words: the program and its arguments; only arguments if `module` is given.
        module: the module of `-m`, or None.

    Returns:
        The command as the operating system takes it.

    Raises:
        LaunchError: if there is no program, it does not exist, or it can't be executed.
    """
    if module is not None:
        return (sys.executable, "-m", module, *words)
    if not words:
        raise LaunchError(
            explain("There is no program to run", fix="Name a script: tfdist run -n 2 train.py")
        )
    program, *arguments = words
    if _INTERPRETER.match(os.path.basename(program)):
        if arguments and not arguments[0].startswith("-"):
            _check_file(arguments[0])
        return (_interpreter(program), *arguments)
    if program.endswith(_SOURCES):
        _check_file(program)
        return (sys.executable, program, *arguments)
    return (_executable(program), *arguments)


def _interpreter(program: str) -> str:
    if program in ("python", "python3"):
        return sys.executable
    return _executable(program)


def _check_file(script: str) -> None:
    """Raises a LaunchError unless `script` is there and can be read."""
    path = Path(script)
    if path.is_dir() and (path / "__main__.py").is_file():
        return
    if not path.exists():
        raise LaunchError(
            explain(
                "The script does not exist",
                received=script,
                fix=f"Check the path; it is looked for from {Path.cwd()}",
            )
        )
    if path.is_dir() or not os.access(path, os.R_OK):
        raise LaunchError(
            explain(
                "The script is a folder" if path.is_dir() else "The script can't be read",
                received=script,
                fix="Name a readable Python file",
            )
        )


def _executable(program: str) -> str:
    """Finds a program as a shell would, and in the current folder."""
    found = shutil.which(program)
    if found is not None:
        return found
    path = Path(program)
    if path.is_file():
        if os.access(path, os.X_OK):
            return str(path.absolute())
        raise LaunchError(
            explain(
                "The program is not executable",
                received=program,
                fix=f"Run it as a Python file: tfdist run ... python {program}; "
                f"or make it executable: chmod +x {program}",
            )
        )
    raise LaunchError(
        explain(
            "The program is a folder" if path.is_dir() else "The program was not found",
            received=program,
            fix="Name a Python file, an executable on PATH, or -m MODULE; "
            "options of tfdist run go before it",
        )
    )
