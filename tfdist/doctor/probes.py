"""Gathers the facts. No probe can stop the others: each has a deadline, and may fail."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tfdist.doctor import machine, nvidia, software, surroundings
from tfdist.doctor.commands import run, within
from tfdist.doctor.facts import (
    ClusterFacts,
    Facts,
    GpuTool,
    HostFacts,
    Limits,
    TensorFlowFacts,
)
from tfdist.doctor.tensorflow_probe import MARK

__all__ = ["ask_tensorflow", "gather"]

T = TypeVar("T")


def gather(
    environ: Mapping[str, str] | None = None,
    *,
    timeout: float = 30.0,
    tensorflow_timeout: float = 120.0,
) -> Facts:
    """Takes the snapshot.

    Args:
        environ: the environment to judge; None means `os.environ`.
        timeout: seconds for each probe.
        tensorflow_timeout: seconds for the import of TensorFlow and Keras, which is slow from a
            network file system.
    """
    variables = os.environ if environ is None else environ
    unanswered: list[str] = []

    def ask(name: str, default: T, function: Callable[..., T], *arguments: Any) -> T:
        try:
            value, ended = within(timeout, function, *arguments)
        except Exception as error:  # A probe meets whatever a broken machine has.
            unanswered.append(f"{name}: {type(error).__name__}: {error}")
            return default
        if not ended or value is None:
            unanswered.append(f"{name}: no answer within {timeout:.0f} s")
            return default
        return value

    return Facts(
        python=platform.python_version(),
        executable=sys.executable,
        packages=ask("packages", {}, software.packages),
        unmet=tuple(ask("requirements", [], software.unmet)),
        shadowed=tuple(ask("working directory", [], _shadowed_here)),
        environment=software.relevant(variables),
        host=ask("machine", HostFacts(name=platform.node()), machine.host, variables),
        interfaces=ask("network", (), machine.interfaces),
        infiniband=ask("InfiniBand", (), machine.infiniband),
        gpu_tool=ask("nvidia-smi", GpuTool(), nvidia.read, variables),
        tpu_chips=ask("TPU", 0, machine.tpu_chips),
        cluster=ask("cluster", ClusterFacts(), surroundings.cluster, variables),
        disks=ask("folders", (), machine.disks, variables),
        limits=ask("limits", Limits(), machine.limits),
        shared_memory=machine.shared_memory(),
        tensorflow=ask_tensorflow(variables, tensorflow_timeout),
        unanswered=tuple(unanswered),
        time=time.time(),
    )


def _shadowed_here() -> list[str]:
    try:
        return software.shadowed(Path.cwd())
    except OSError:
        return []  # The folder is gone, as the look at the folders tells.


def ask_tensorflow(environ: Mapping[str, str], timeout: float) -> TensorFlowFacts:
    """Imports TensorFlow and Keras in a process of their own.

    Args:
        environ: the environment; a cluster in it is of no concern there.
        timeout: seconds.
    """
    own = {name: value for name, value in environ.items() if name != "TF_CONFIG"}
    own.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    done = run([sys.executable, "-m", "tfdist.doctor.tensorflow_probe"], own, timeout)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    told: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK)) if lines else {}
    told["gpus"] = tuple(told.get("gpus", ()))
    if done.code == 0 and lines:
        return TensorFlowFacts(**told)
    ended = "" if done.code is None else _how_it_ended(done.code)
    end = " | ".join(line.strip() for line in done.stderr.splitlines() if line.strip())[-600:]
    return TensorFlowFacts(**told, problem=": ".join(filter(None, (ended, end))) or "no output")


def _how_it_ended(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
