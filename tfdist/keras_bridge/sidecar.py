r"""An evaluator beside a training job: `fit` in it evaluates each checkpoint that the job writes.

    training   epoch 1 -> last.keras      epoch 2 -> last.keras        ...         end
                              \                         \
    evaluator                  load, evaluate, log       load, evaluate, log       end

The same script runs on it as on every task, with its own `validation_data`. Keras 2 had a
`SidecarEvaluator` for this; Keras 3 has nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from tfdist import preflight
from tfdist.cluster import Cluster
from tfdist.errors import ConfigError, explain

__all__ = ["Sidecar", "run"]

logger = logging.getLogger(__name__)

_POLL = 1.0  # seconds between two looks for a new checkpoint
_GONE = 3.0  # seconds without the chief after which the job counts as ended
_SUFFIXES = (".keras", ".weights.h5")
_OWN = "evaluator"  # the evaluator's own folder, in the checkpoints' and in the logs'


@dataclasses.dataclass(frozen=True)
class Sidecar:
    """What an evaluator needs to know of the job.

    Attributes:
        cluster: the cluster; this task is its evaluator.
        checkpoint_dir: where the job writes its checkpoints.
        log_dir: where TensorBoard's scalars go, or None.
        start_timeout: how long the job may take to start, in seconds.
    """

    cluster: Cluster
    checkpoint_dir: str | None
    log_dir: str | None
    start_timeout: float

    @property
    def chief(self) -> str:
        """The address of the job's chief."""
        jobs = self.cluster.jobs
        return (jobs.get("chief") or jobs["worker"])[0]


def run(sidecar: Sidecar, model: Any, arguments: dict[str, Any]) -> NoReturn:
    """Evaluates the job's checkpoints until it ends, then ends this process.

    Args:
        sidecar: the job.
        model: the compiled model; its weights are replaced by the checkpoints'.
        arguments: those of `fit`, of which `validation_data` is used.

    Raises:
        ConfigError: there is no `validation_data`, or no `checkpoint_dir`.
        SystemExit: always: 0 when the job has ended and a checkpoint was evaluated, else 1.
    """
    _check(sidecar, arguments)
    evaluator = _Evaluator(sidecar, model, arguments)
    logger.info("The evaluator waits for checkpoints in %s.", sidecar.checkpoint_dir)
    began = seen = time.monotonic()
    was_up = False
    while True:
        evaluator.look()
        now = time.monotonic()
        if preflight.listens(sidecar.chief):
            seen, was_up = now, True
        elif was_up and now - seen > _GONE:
            break
        elif not was_up and now - began > sidecar.start_timeout and not evaluator.count:
            logger.error(
                "%s",
                explain(
                    f"The job's chief did not start within {sidecar.start_timeout:.0f} s",
                    received=sidecar.chief,
                    source=sidecar.cluster.source,
                    fix="Start the other tasks, or raise start_timeout",
                ),
            )
            raise SystemExit(1)
        time.sleep(_POLL)
    evaluator.look()
    evaluator.close()
    if not evaluator.count:
        logger.error("The job has ended and left no checkpoint in %s.", sidecar.checkpoint_dir)
        raise SystemExit(1)
    logger.info(
        "The job has ended; the evaluator evaluated %d checkpoints. Best: %s",
        evaluator.count,
        evaluator.best_path,
    )
    raise SystemExit(0)


class _Evaluator:
    """Finds new checkpoints, evaluates them, and keeps the best."""

    def __init__(self, sidecar: Sidecar, model: Any, arguments: dict[str, Any]) -> None:
        assert sidecar.checkpoint_dir is not None
        self.count = 0
        self._folder = Path(sidecar.checkpoint_dir)
        self.best_path = self._folder / _OWN / "best.keras"
        self._model = model
        self._arguments = arguments
        self._seen: dict[Path, tuple[int, int]] = {}
        self._steps: set[int] = set()
        self._best = math.inf
        self._writer = (
            tf.summary.create_file_writer(os.path.join(sidecar.log_dir, _OWN))
            if sidecar.log_dir is not None
            else None
        )

    def look(self) -> None:
        """Evaluates the checkpoints that are new, the oldest first."""
        for path, mark in self._new():
            self._seen[path] = mark
            try:
                self._model.load_weights(path)
            except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
                logger.warning("%s can't be read, and is left out: %s", path, error)
                continue
            step = int(self._model.optimizer.iterations.numpy()) if self._model.optimizer else 0
            if step and step in self._steps:
                continue  # another file of the same state, such as the best model so far
            self._steps.add(step)
            self._evaluate(path, step)

    def close(self) -> None:
        """Writes what is left of the logs."""
        if self._writer is not None:
            self._writer.close()

    def _new(self) -> list[tuple[Path, tuple[int, int]]]:
        found = []
        for path in self._folder.glob("*"):
            if not path.name.endswith(_SUFFIXES):
                continue
            try:
                status = path.stat()
            except OSError:
                continue  # replaced this moment: seen at the next look
            mark = (status.st_mtime_ns, status.st_size)
            if self._seen.get(path) != mark:
                found.append((path, mark))
        return sorted(found, key=lambda one: one[1])

    def _evaluate(self, path: Path, step: int) -> None:
        data = self._arguments["validation_data"]
        inputs = data if isinstance(data, (tuple, list)) else (data,)
        logs = self._model.evaluate(
            *inputs[:2],
            sample_weight=inputs[2] if len(inputs) > 2 else None,
            batch_size=self._arguments.get("validation_batch_size")
            or self._arguments.get("batch_size"),
            steps=self._arguments.get("validation_steps"),
            verbose=0,
            return_dict=True,
        )
        self.count += 1
        if self._writer is not None:
            with self._writer.as_default(step=step):
                for name, value in logs.items():
                    tf.summary.scalar(f"evaluation_{name}_vs_iterations", value)
            self._writer.flush()
        is_best = logs["loss"] < self._best
        if is_best:
            self._best = logs["loss"]
            self.best_path.parent.mkdir(parents=True, exist_ok=True)
            self._model.save(self.best_path)
        figures = ", ".join(f"{name} {value:.4f}" for name, value in logs.items())
        logger.info(
            "evaluated %s at step %d: %s%s", path.name, step, figures, " (best)" if is_best else ""
        )


def _check(sidecar: Sidecar, arguments: dict[str, Any]) -> None:
    if arguments.get("validation_data") is None:
        raise ConfigError(
            explain(
                "An evaluator evaluates checkpoints on the validation data, and `fit` was given none",
                received="a task of role evaluator, validation_data=None",
                source=sidecar.cluster.source,
                fix="Pass validation_data to fit, on every task",
            )
        )
    if sidecar.checkpoint_dir is None:
        raise ConfigError(
            explain(
                "An evaluator needs to know where the job writes its checkpoints",
                received="checkpoint_dir=None",
                source=sidecar.cluster.source,
                fix="Set checkpoint_dir, on every task, and pass runtime.callbacks() to fit, which "
                "write there",
            )
        )
