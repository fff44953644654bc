"""What the workers tell each other around a save, with deadlines and errors of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from tfdist.errors import ClusterError, ConfigError, SaveError, explain
from tfdist.keras_bridge import failures

__all__ = ["WRITE_TIMEOUT", "arrive", "chief_decides", "is_shared", "outcome", "save_timeout"]

WRITE_TIMEOUT = 3600.0  # seconds: a slow disk is not a failure, and a dead chief is noticed anyway
_ARRIVE_TIMEOUT = 60.0
_last_paths: list[str] = []  # of the latest save, by rank


def is_shared(strategy: Any) -> bool:
    """Returns whether other workers train the same model."""
    return strategy is not None and strategy.tfdist.num_workers > 1


def save_timeout() -> float:
    """Returns how long a save waits for the other workers to call it too, in seconds.

    Raises:
        ConfigError: if TFDIST_SAVE_TIMEOUT is not a positive number.
    """
    text = os.environ.get("TFDIST_SAVE_TIMEOUT", "")
    if not text:
        return _ARRIVE_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ConfigError(
            explain(
                "The save timeout must be a positive number of seconds",
                received=repr(text),
                source="TFDIST_SAVE_TIMEOUT",
                fix="Set it to a number such as 60",
            )
        )
    return seconds


def arrive(strategy: Any, what: str, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Meets the other workers in front of a save.

    Args:
        strategy: a tfdist strategy.
        what: the call, such as "model.save", for the error message.
        facts: what the others need to know of this worker's call: its "path", and more.

    Returns:
        The facts by rank.

    Raises:
        SaveError: if a worker did not make the call within `save_timeout()`.
        ClusterError: if another worker has failed.
    """
    texts = _exchange(strategy, "save", what, json.dumps(facts), f"path {facts['path']!r}")
    arrivals = [json.loads(text) for text in texts]
    _last_paths[:] = [arrival["path"] for arrival in arrivals]
    return arrivals


def _exchange(strategy: Any, name: str, what: str, text: str, received: str | None) -> list[str]:
    """Exchanges a text within the save timeout.

    Raises:
        SaveError: if a worker doesn't take part in time.
    """
    timeout = save_timeout()
    try:
        texts: list[str] = strategy.tfdist.exchange(name, text, timeout)
    except ClusterError as error:
        if not error.missing:
            raise
        missing = ", ".join(f"worker {rank}" for rank in error.missing)
        raise SaveError(
            explain(
                f"`{what}` must be called on every worker; {missing} did not call it within "
                f"{timeout:.0f} s (TFDIST_SAVE_TIMEOUT) of worker {strategy.tfdist.rank}",
                received=None if received is None else received + _before(),
                fix="Remove the `if` around it: all workers call it with the same path, the chief "
                "writes the file, and the others only take part",
            )
        ) from None
    return texts


def _before() -> str:
    """Tells of a save just before that may have joined two different calls."""
    if len(set(_last_paths)) < 2:
        return ""
    paths = ", ".join(f"worker {rank} {path!r}" for rank, path in enumerate(_last_paths))
    return f"; the save before this one had different paths: {paths}"


def outcome(strategy: Any, what: str, problem: str) -> list[str]:
    """Tells all workers how each fared in something that they did after arriving together.

    Args:
        strategy: a tfdist strategy.
        what: what was done, for the error message.
        problem: this worker's error as one line, or "".

    Returns:
        The problems by rank.

    Raises:
        ClusterError: if a worker failed meanwhile.
    """
    texts: list[str] = strategy.tfdist.exchange(what, problem, WRITE_TIMEOUT)
    return texts


def chief_decides(strategy: Any, what: str, decide: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Lets the chief decide for all workers, and tells all of them if it fails to.

    Args:
        strategy: a tfdist strategy.
        what: what is decided, for error messages.
        decide: called on the chief alone; returns facts that JSON can hold.

    Returns:
        The chief's facts, on every worker.

    Raises:
        SaveError: if a worker doesn't take part within `save_timeout()`; on the other workers, if
            `decide` raised on the chief (where its own error passes through).
        ClusterError: if a worker doesn't take part, or has failed.
    """
    if not is_shared(strategy):
        return decide()
    facts: dict[str, Any] = {}
    problem: BaseException | None = None
    if strategy.tfdist.is_chief:
        try:
            facts = decide()
        except Exception as error:
            problem, facts = error, {"problem": failures.summary(error)}
    facts = json.loads(_exchange(strategy, what, what, json.dumps(facts), None)[0])
    if problem is not None:
        raise problem
    if "problem" in facts:
        raise SaveError(
            explain(
                f"The chief failed at {what}",
                received=facts["problem"],
                fix="Look at the chief's log",
            )
        )
    return facts
