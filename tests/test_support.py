"""The helpers of the tests themselves: groups end in time, and leaks are seen. No TensorFlow."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.leaks import Snapshot, leaks
from support.processes import GroupError, held_ports, run_group
from support.server import CaseError, CaseServer

_CASES = """
import json, os, sys, time

def start():
    print("set up")
    return {"calls": 0, "rank": os.environ.get("TF_CONFIG", "")[-2:-1]}

def count(state, add):
    state["calls"] += add
    return state["calls"]

def fail_on(state, rank):
    own = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    if own == rank:
        print("about to fail", file=sys.stderr)
        raise ValueError(f"broken on {rank}")
    time.sleep(600)

def sleep(state):
    time.sleep(600)

def die(state):
    print("last words", flush=True)
    os._exit(3)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(
        "import json, os, sys, time\n"
        "task = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
        "print('rank', task, sys.argv[1:])\n"
        "print('on stderr', task, file=sys.stderr)\n"
        "if 'hang' in sys.argv: time.sleep(600)\n"
        "sys.exit(task if 'fail' in sys.argv else 0)\n"
    )
    return path


def test_a_group_runs_with_one_config_per_rank(script: Path) -> None:
    results = run_group(script, 2, ["--me={rank}"], timeout=20)
    assert [r.returncode for r in results] == [0, 0]
    assert [r.stdout for r in results] == ["rank 0 ['--me=0']\n", "rank 1 ['--me=1']\n"]
    assert results[1].stderr == "on stderr 1\n"


def test_a_failing_rank_is_reported_with_all_output(script: Path) -> None:
    with pytest.raises(GroupError) as caught:
        run_group(script, 2, ["fail"], timeout=20)
    for part in ("rank 1: exit code 1", "on stderr 0", "on stderr 1"):
        assert part in str(caught.value)
    results = run_group(script, 2, ["fail"], timeout=20, check=False)
    assert [r.returncode for r in results] == [0, 1]


def test_a_hang_ends_at_the_deadline(script: Path) -> None:
    began = time.monotonic()
    with pytest.raises(GroupError, match="killed at the deadline"):
        run_group(script, 2, ["hang"], timeout=2)
    assert time.monotonic() - began < 10


def test_held_ports_differ() -> None:
    with held_ports(5) as addresses:
        assert len(set(addresses)) == 5
        assert all(address.startswith("127.0.0.1:") for address in addresses)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CaseServer]:
    (tmp_path / "made_up_cases.py").write_text(_CASES)
    with CaseServer(
        "made_up_cases:start", n=2, env={"PYTHONPATH": str(tmp_path)}, start_timeout=20
    ) as running:
        yield running


def test_a_server_keeps_its_processes_between_cases(server: CaseServer) -> None:
    assert server.call("made_up_cases:count", add=2) == [2, 2]
    assert server.call("made_up_cases:count", add=3) == [5, 5]
    assert server.starts == 1


def test_a_server_starts_afresh_after_a_failure(server: CaseServer) -> None:
    assert server.call("made_up_cases:count", add=1) == [1, 1]
    with pytest.raises(CaseError) as caught:
        server.call("made_up_cases:fail_on", rank=1, timeout=20)
    for part in ("failed on rank 1: ValueError: broken on 1", "about to fail", "rank 0: no answer"):
        assert part in str(caught.value)
    assert server.call("made_up_cases:count", add=1) == [1, 1]
    assert server.starts == 2


def test_a_server_misses_no_deadline_and_no_death(server: CaseServer) -> None:
    with pytest.raises(CaseError, match="missed its deadline of 1 s"):
        server.call("made_up_cases:sleep", timeout=1)
    with pytest.raises(CaseError, match="last words") as caught:
        server.call("made_up_cases:die", timeout=20)
    assert "exit code 3" in str(caught.value)


def test_leaks_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Snapshot.take()
    assert leaks(before) == []
    monkeypatch.setenv("TFDIST_LEAKED", "1")
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-behind")
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        found = "\n".join(leaks(before))
    finally:
        stop.set()
        thread.join()
        child.kill()
        child.wait(timeout=10)
    assert "environment variable TFDIST_LEAKED: was None, is '1'" in found
    assert f"child process {child.pid}" in found
    assert "thread left-behind" in found
    monkeypatch.delenv("TFDIST_LEAKED")
    assert leaks(before) == []


def test_the_children_of_a_server_are_no_leak(server: CaseServer) -> None:
    before = Snapshot.take()
    server.call("made_up_cases:count", add=1)
    assert leaks(before) == []
