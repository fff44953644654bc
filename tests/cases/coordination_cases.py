"""Agreements between workers, for a group of real processes."""

from __future__ import annotations

import os
import time
from typing import Any

from tfdist.errors import ClusterError
from tfdist.strategies import coordination


def exchanged(strategy: Any, texts: list[list[str]]) -> list[list[str]]:
    """Exchanges this worker's texts, one after another under one name."""
    return [coordination.exchange(strategy, "test", mine[strategy.tfdist.rank]) for mine in texts]


def met(strategy: Any, late: float) -> float:
    """Worker 1 comes late to a barrier; returns how long this worker waited."""
    if strategy.tfdist.rank == 1:
        time.sleep(late)
    before = time.monotonic()
    coordination.barrier(strategy, "late", timeout=30)
    return time.monotonic() - before


def missed(strategy: Any) -> dict[str, Any]:
    """Worker 1 stays away once; afterwards both meet again."""
    found: dict[str, Any] = {"error": "", "missing": (), "waited": 0.0}
    if strategy.tfdist.rank == 0:
        before = time.monotonic()
        try:
            coordination.exchange(strategy, "absent", "hello", timeout=1.5)
        except ClusterError as error:
            found |= {"error": str(error), "missing": error.missing}
        found["waited"] = time.monotonic() - before
    coordination.barrier(strategy, "after", timeout=30)
    found["again"] = coordination.exchange(strategy, "absent", f"{strategy.tfdist.rank}", 30)
    return found


def published(strategy: Any) -> list[str | None]:
    nothing = coordination.peek(strategy, "nothing")
    coordination.barrier(strategy, "before publishing")
    if strategy.tfdist.rank == 1:
        coordination.publish(strategy, "note", "from worker 1")
    coordination.barrier(strategy, "published")
    if strategy.tfdist.rank == 0:
        coordination.publish(strategy, "note", "too late")  # the first stays
    coordination.barrier(strategy, "published again")
    return [nothing, coordination.peek(strategy, "note", timeout=10)]


def healthy(strategy: Any) -> dict[int, str]:
    return coordination.peer_failures(strategy)


def aborted(strategy: Any) -> str:
    """Worker 1 gives up while worker 0 waits for it."""
    if strategy.tfdist.rank == 1:
        time.sleep(0.5)
        coordination.abort(strategy, "worker 1 failed: ValueError: bug")
        return ""
    try:
        coordination.barrier(strategy, "never", timeout=60)
    except ClusterError as error:
        return str(error)
    return "no error"


def killed(strategy: Any) -> dict[str, Any]:
    """Worker 1 dies while worker 0 waits for it."""
    if strategy.tfdist.rank == 1:
        time.sleep(0.5)
        os._exit(9)
    before = time.monotonic()
    try:
        coordination.barrier(strategy, "never", timeout=120)
        error = "no error"
    except ClusterError as caught:
        error = str(caught)
    return {"error": error, "waited": time.monotonic() - before}
