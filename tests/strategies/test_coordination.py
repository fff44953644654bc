"""Agreements between workers outside of a step: two real processes, and none on one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.server import CaseServer

from tfdist.cluster import Cluster
from tfdist.strategies import coordination
from tfdist.strategies.marker import Marker, marker_of

CASES = "cases.coordination_cases"


@pytest.fixture(scope="module")
def group() -> Iterator[CaseServer]:
    with CaseServer("keras_bridge.bridge_cases:start_group", n=2) as server:
        yield server


def test_one_worker_agrees_with_itself() -> None:
    mark = Marker(Cluster.local())
    for strategy in (mark, SimpleNamespace(tfdist=mark), SimpleNamespace()):
        assert coordination.exchange(strategy, "x", "text") == ["text"]
        coordination.barrier(strategy, "x")
        coordination.publish(strategy, "x", "text")
        assert coordination.peek(strategy, "x") is None
        coordination.abort(strategy, "x")
        assert coordination.peer_failures(strategy) == {}
    assert (mark.num_workers, mark.rank, mark.is_chief) == (1, 0, True)


def test_marks() -> None:
    mark = Marker(Cluster.local())
    assert marker_of(mark) is mark
    assert marker_of(SimpleNamespace(tfdist=mark)) is mark
    assert marker_of(SimpleNamespace()) is None


def test_texts_are_exchanged_by_rank(group: CaseServer) -> None:
    texts = [["a", "b"], ["", "b" * 5000], ["ü\n, =", "{}"], ["a", "b"]]
    for found in group.call(f"{CASES}:exchanged", texts=texts):
        assert found == texts


def test_a_barrier_waits_for_the_last(group: CaseServer) -> None:
    early, late = group.call(f"{CASES}:met", late=1.0)
    assert 0.7 < early < 20
    assert late < early


def test_a_worker_that_stays_away_is_named_and_may_come_later(group: CaseServer) -> None:
    waiting, _ = results = group.call(f"{CASES}:missed")
    assert "worker 1 did not take part in 'absent'" in waiting["error"]
    assert "1 of 2 workers" in waiting["error"]
    assert waiting["missing"] == (1,)
    assert 1.4 < waiting["waited"] < 10
    assert [result["again"] for result in results] == [["0", "1"]] * 2


def test_the_first_published_text_stays(group: CaseServer) -> None:
    assert group.call(f"{CASES}:published") == [[None, "from worker 1"]] * 2


def test_healthy_workers_have_not_failed(group: CaseServer) -> None:
    assert group.call(f"{CASES}:healthy") == [{}, {}]


def test_a_worker_that_gives_up_says_why() -> None:
    with CaseServer("keras_bridge.bridge_cases:start_group", n=2) as server:
        said, _ = server.call(f"{CASES}:aborted")
    assert said == "worker 1 failed: ValueError: bug"


def test_a_worker_that_died_is_named_long_before_the_deadline(
    run_group: Callable[..., Any],
) -> None:
    script = Path(__file__).parents[1] / "cases" / "coordination_job.py"
    waiting, dead = run_group(script, 2, timeout=100, check=False)
    assert dead.returncode == 9
    assert waiting.returncode == 0, waiting.stderr
    found = json.loads(waiting.stdout.splitlines()[-1])
    assert "worker 1 ended without a word" in found["error"]
    assert found["waited"] < 60
