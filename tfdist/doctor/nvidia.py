"""Reads nvidia-smi, whose output is not always what its manual says."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from tfdist.doctor.commands import Output, run
from tfdist.doctor.facts import Gpu, GpuTool

__all__ = ["parse_gpus", "read"]

_FIELDS = ("index", "name", "uuid", "memory.total", "memory.used", "compute_cap", "driver_version")
_UNKNOWN = ("", "[n/a]", "n/a", "[not supported]", "[unknown error]")


def read(
    environ: Mapping[str, str], timeout: float = 10.0, devices: Path = Path("/dev")
) -> GpuTool:
    """Asks nvidia-smi for the GPUs and how they are connected.

    Args:
        environ: the environment, whose PATH tells where it is.
        timeout: seconds for each question; with a broken driver it never answers.
        devices: where the GPUs' device files are.
    """
    files = sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in devices.glob("nvidia*"))
    path = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if path is None:
        return GpuTool(device_files=files)
    query = f"--query-gpu={','.join(_FIELDS)}"
    done = run([path, query, "--format=csv,noheader,nounits"], environ, timeout)
    problem = _problem(done)
    if problem:
        return GpuTool(path, problem=problem, device_files=files)
    try:
        gpus, driver = parse_gpus(done.stdout)
    except ValueError as error:
        return GpuTool(path, problem=str(error), device_files=files)
    topology = ""
    if len(gpus) > 1:
        drawn = run([path, "topo", "-m"], environ, timeout)
        topology = drawn.stdout.rstrip() if drawn.code == 0 else ""
    return GpuTool(path, driver, gpus, topology, device_files=files)


def parse_gpus(text: str) -> tuple[tuple[Gpu, ...], str]:
    """Reads the lines of `--query-gpu`.

    Args:
        text: a line for each GPU, with commas between the fields.

    Returns:
        The GPUs, and the driver's version.

    Raises:
        ValueError: a line is not of this form; the message has the line.
    """
    gpus, driver = [], ""
    for words in csv.reader(text.splitlines(), skipinitialspace=True):
        if not any(word.strip() for word in words):
            continue
        values = [word.strip() for word in words]
        if len(values) != len(_FIELDS) or not values[0].isdecimal():
            raise ValueError(f"unexpected line of nvidia-smi: {', '.join(words)[:200]!r}")
        known = ["" if value.lower() in _UNKNOWN else value for value in values]
        index, name, uuid, total, used, capability, driver = known
        gpus.append(Gpu(int(index), name, uuid, _number(total), _number(used), capability))
    return tuple(gpus), driver


def _number(text: str) -> int:
    return int(float(text)) if re.fullmatch(r"\d+(\.\d+)?", text) else 0


def _problem(done: Output) -> str:
    checks: tuple[tuple[bool, Callable[[], str]], ...] = (
        (done.code is None, lambda: done.stderr),
        (
            done.code == 0 and "No devices were found" in done.stdout,
            lambda: "no devices were found",
        ),
        (done.code == 0 and not done.stdout.strip(), lambda: "it printed nothing"),
        (done.code != 0, lambda: _last_line(done.stdout + "\n" + done.stderr)),
    )
    return next((text() or f"exit code {done.code}" for wrong, text in checks if wrong), "")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
