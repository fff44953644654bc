"""What `fit` adds around a user's callbacks, so that several workers stay together.

    [ statistics made one ]  the user's callbacks ...  [ workers stay together ]

Built-in callbacks take equal decisions on all workers, because Keras' logs are equal there. A
callback of the user's may decide from something else (tensorflow users report training that hangs
when one worker stops early): at the end of an epoch any worker's vote stops all, and a stop in the
middle of an epoch that not all workers want is an error that says so, not a hang.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import keras

from tfdist import epoch_order
from tfdist.errors import ClusterError, UnsupportedError, explain
from tfdist.keras_bridge import (
    agreement,
    checkpoints,
    coordinator,
    failures,
    log_reading,
    loggers,
    nan_guard,
    resume,
)
from tfdist.keras_bridge.patching import apply_repairs
from tfdist.keras_bridge.replica_state import sync_batch_statistics

__all__ = ["adapt", "install", "is_adapted"]

logger = logging.getLogger(__name__)

_WRITERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)


def install() -> None:
    """Installs the repairs of the built-in callbacks."""
    for module in (checkpoints, loggers, resume):
        apply_repairs(module.REPAIRS)


def adapt(callbacks: Any, strategy: Any) -> Any:
    """Returns the callbacks of a `fit` with tfdist's own around them.

    Args:
        callbacks: what was passed to `fit`: None, a callback, a nested list, or a `CallbackList`,
            which is changed in place.
        strategy: the model's tfdist strategy.

    Returns:
        A list, or the same `CallbackList`.

    Raises:
        UnsupportedError: if a callback can't work with several workers.
    """
    is_list = isinstance(callbacks, keras.callbacks.CallbackList)
    given = callbacks.callbacks if is_list else _flat(callbacks)
    given = [c for c in given if not isinstance(c, (_Statistics, _Together))]
    if agreement.is_shared(strategy):
        _check(given)
        if not strategy.tfdist.is_chief:
            for callback in given:
                if isinstance(callback, loggers.PRINTING):
                    callback.verbose = 0
    writers = [type(c).__name__ for c in given if isinstance(c, _WRITERS)]
    reads = any(log_reading.reads_each_batch(callback) for callback in given)
    adapted = [_Statistics(strategy, writers, reads), *given, _Together(strategy)]
    if not is_list:
        return adapted
    for added in (adapted[0], adapted[-1]):
        added.set_model(callbacks.model)
        added.set_params(callbacks.params)
    callbacks.callbacks = adapted
    return callbacks


def is_adapted(callbacks: Any) -> bool:
    """Returns whether callbacks are those of a `fit`, as it passes them to its validation."""
    return isinstance(callbacks, keras.callbacks.CallbackList) and any(
        isinstance(callback, _Statistics) for callback in callbacks.callbacks
    )


def _flat(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return keras.tree.flatten(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def _check(callbacks: list[Any]) -> None:
    for callback in callbacks:
        if type(callback).__name__ == "OrbaxCheckpoint":
            raise UnsupportedError(
                explain(
                    "OrbaxCheckpoint coordinates workers through JAX, which is not in use here",
                    received=type(callback).__name__,
                    fix="Use keras.callbacks.ModelCheckpoint or BackupAndRestore",
                )
            )


class _Statistics(keras.callbacks.Callback):
    """Comes first, so that every other callback sees one model on all replicas."""

    def __init__(self, strategy: Any, writers: list[str], reads_batch_logs: bool) -> None:
        super().__init__()
        self._strategy = strategy
        self._writers = writers
        self._reads_batch_logs = reads_batch_logs

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses callbacks that save on some workers only: a save takes all of them."""
        nan_guard.unguard(self.model)
        if coordinator.coordinates(self._strategy):
            log_reading.of(self.model).always = self._reads_batch_logs
        if not agreement.is_shared(self._strategy):
            return
        own = {"saving": ", ".join(self._writers) or "none", "reads": self._reads_batch_logs}
        facts = [
            json.loads(text)
            for text in self._strategy.tfdist.exchange(
                "callbacks", json.dumps(own), agreement.WRITE_TIMEOUT
            )
        ]
        log_reading.of(self.model).always = any(fact["reads"] for fact in facts)
        given = [fact["saving"] for fact in facts]
        if len(set(given)) > 1:
            raise ClusterError(
                explain(
                    "The workers have different callbacks that save the model",
                    received="; ".join(f"worker {rank}: {one}" for rank, one in enumerate(given)),
                    fix="Pass the same callbacks, with the same paths, to `fit` on every worker: "
                    "the chief writes, and the others only take part",
                )
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        log_reading.of(self.model).restart()

    def on_test_begin(self, logs: Any = None) -> None:
        log_reading.of(self.model).restart()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        sync_batch_statistics(self.model)
        if coordinator.coordinates(self._strategy):
            coordinator.report_epoch(self._strategy, epoch)


class _Together(keras.callbacks.Callback):
    """Comes last: keeps the workers in the same place of the run."""

    reads_batch_logs = False

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self._strategy = strategy
        self._shared = agreement.is_shared(strategy)
        self._epoch = 0
        self._stopped_early = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuses to train from different states."""
        self._stopped_early = False
        epoch_order.begin_fit()
        if not self._shared:
            return
        optimizer = self.model.optimizer
        step = int(optimizer.iterations.numpy()) if optimizer is not None else 0
        epoch = int(getattr(self.model, "_initial_epoch", None) or 0)
        states = self._tell("the start of fit", {"epoch": epoch, "step": step})
        if any(state != states[0] for state in states):
            raise ClusterError(
                explain(
                    "The workers start from different states",
                    received="; ".join(
                        f"worker {rank} from epoch {state['epoch']}, step {state['step']}"
                        for rank, state in enumerate(states)
                    ),
                    fix="Load the same checkpoint, from a file system that they share, on all",
                )
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        epoch_order.begin_epoch(epoch)
        resume.start_epoch(self.model, self._strategy)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks that a stop in the middle of an epoch is everybody's."""
        if not (self._shared and self.model.stop_training):
            return
        self._stopped_early = True
        try:
            places = self._tell(
                "a stop within an epoch",
                {"epoch": self._epoch, "batch": batch},
                agreement.save_timeout(),
            )
        except ClusterError as error:
            if not error.missing:
                raise
            others = ", ".join(f"worker {rank}" for rank in error.missing)
            places = []
            problem = f"{others} went on"
        else:
            problem = f"the workers stopped after batches {[p['batch'] for p in places]}"
        if not places or any(place != places[0] for place in places):
            raise ClusterError(
                explain(
                    f"stop_training was set on worker {self._strategy.tfdist.rank} in the middle "
                    f"of an epoch, but not on all workers at once: {problem}",
                    received=f"epoch {self._epoch}, batch {batch}",
                    fix="In batch callbacks decide from `logs`, which are equal on all workers, or "
                    "set stop_training in on_epoch_end, where one worker's vote stops all",
                )
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops all workers if any wants to stop."""
        if not self._shared or self._stopped_early:
            return
        votes = self._tell("the end of an epoch", {"stop": bool(self.model.stop_training)})
        stopping = [rank for rank, vote in enumerate(votes) if vote["stop"]]
        if stopping and len(stopping) < len(votes):
            logger.warning(
                "Only %s set stop_training in epoch %d; all workers stop with it.",
                ", ".join(f"worker {rank}" for rank in stopping),
                epoch + 1,
            )
        self.model.stop_training = bool(stopping)

    def on_train_end(self, logs: Any = None) -> None:
        epoch_order.end_fit()
        failures.end_of_run(self._strategy)

    def _tell(
        self, what: str, facts: dict[str, Any], timeout: float = agreement.WRITE_TIMEOUT
    ) -> list[dict[str, Any]]:
        texts = self._strategy.tfdist.exchange(what, json.dumps(facts), timeout)
        return [json.loads(text) for text in texts]
