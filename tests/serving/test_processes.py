"""Real tasks of a cluster with parameter servers, killed by id: everybody ends, and says why."""

from __future__ import annotations

import signal
import time

SOON = 20.0  # seconds; what is promised is a fraction of it, on an idle machine


def test_a_job_ends_well_and_a_worker_killed_in_the_middle_comes_back(cluster):
    servers = cluster.start_servers()
    chief = cluster.start("chief")
    chief.wait_for("TRAINS", 60)
    assert "CHIEF <tfdist.Runtime: 2 workers + 1 ps, each on batches of its own" in chief.text
    assert "workers=2 rank=0" in chief.text
    _, lost, _ = servers
    lost.signal(signal.SIGKILL)
    assert lost.wait(SOON) == -signal.SIGKILL
    again = cluster.start("worker 1")
    again.wait_for("STEP", SOON)
    cluster.tell_end()
    assert chief.wait(SOON) == 0
    for server in (servers[0], servers[2], again):
        assert server.wait(SOON) == 0
        assert f"the chief has finished: {server.name} ends" in server.text
        assert f"{server.name} serves at 127.0.0.1:" in server.text


def test_a_chief_that_raises_fails_its_servers_with_one_line(cluster):
    servers = cluster.start_servers()
    chief = cluster.start("chief", "raise")
    chief.wait_for("TRAINS", 60)
    cluster.tell_end()
    assert chief.wait(SOON) == 1
    assert chief.text.rstrip().endswith("ValueError: user bug\nand more of it")
    for server in servers:
        assert server.wait(SOON) == 1
        told = server.text.splitlines()
        (line,) = [each for each in told if each.startswith("ERROR") and " tfdist.serving" in each]
        assert line.endswith(f"the chief failed: ValueError: user bug: {server.name} ends")
        assert "Traceback" not in server.text


def test_a_chief_that_exits_with_a_code(cluster):
    servers = cluster.start_servers()
    chief = cluster.start("chief", "exit")
    chief.wait_for("TRAINS", 60)
    cluster.tell_end()
    assert chief.wait(SOON) == 3
    assert [server.wait(SOON) for server in servers] == [1, 1, 1]
    assert "the chief failed: exit code 3: ps 0 ends" in servers[2].text


def test_servers_notice_a_killed_chief_and_a_job_started_at_once_again_takes_their_place(cluster):
    servers = cluster.start_servers()
    chief = cluster.start("chief", "never")
    chief.wait_for("TRAINS", 60)
    for server in servers:
        server.wait_for("has its chief", SOON)
    chief.signal(signal.SIGKILL)
    chief.wait(SOON)
    fresh = cluster.start_servers()
    chief = cluster.start("chief")
    for server in servers:
        assert server.wait(SOON) == 1
        assert "is gone without a word" in server.text
    cluster.tell_end()
    assert chief.wait(60) == 0
    assert [server.wait(SOON) for server in fresh] == [0, 0, 0]
    assert "is in use by a TensorFlow server" in fresh[0].text
    assert "Waiting up to" in fresh[0].text


def test_a_killed_ps_ends_the_chief_and_the_chief_does_not_hang_on_it(cluster):
    worker, other, ps = cluster.start_servers()
    chief = cluster.start("chief", "never")
    chief.wait_for("TRAINS", 60)
    ps.signal(signal.SIGKILL)
    assert chief.wait(60) == 1
    for server in (worker, other):
        assert server.wait(SOON) == 1
        assert "the chief failed: " in server.text


def test_a_missing_worker_is_named_and_those_that_are_there_are_told(cluster):
    worker = cluster.start("worker 0")
    ps = cluster.start("ps 0")
    ps.wait_for("serves at")
    worker.wait_for("serves at")
    started = time.monotonic()
    chief = cluster.start("chief", START_TIMEOUT="3")
    assert chief.wait(SOON) == 1
    assert time.monotonic() - started < SOON
    missing = cluster.jobs["worker"][1]
    assert "ClusterError: The chief waited 3 s for 1 of 3 workers and ps" in chief.text
    assert f"worker 1 at {missing}: refused" in chief.text
    for server in (worker, ps):
        assert server.wait(SOON) == 1
        assert "the chief failed: ClusterError: The chief waited 3 s" in server.text


def test_a_server_ends_at_once_when_it_is_told_to(cluster):
    worker, ps = cluster.start("worker 0"), cluster.start("ps 0")
    worker.wait_for("serves at")
    ps.wait_for("serves at")
    worker.signal(signal.SIGTERM)
    ps.signal(signal.SIGINT)
    assert worker.wait(5) == -signal.SIGTERM
    assert ps.wait(5) == 130
    assert "Traceback" not in ps.text


def test_a_chief_that_never_comes(cluster):
    worker = cluster.start("worker 0", START_TIMEOUT="1")
    assert worker.wait(SOON) == 1
    assert "did not come within 1 s (start_timeout) (refused" in worker.text


def test_tasks_at_each_others_addresses_are_told_apart(cluster):
    swapped = {**cluster.jobs, "worker": cluster.jobs["worker"][::-1]}
    servers = [cluster.start("worker 0", jobs=swapped), cluster.start("ps 0")]
    for server in servers:
        server.wait_for("serves at")
    chief = cluster.start("chief")
    assert chief.wait(SOON) == 1
    assert "ClusterError: " in chief.text
    assert "The address of worker 1 is answered by worker 0" in chief.text
    assert servers[1].wait(SOON) == 1


def test_a_second_chief_does_not_get_the_servers_of_the_first(cluster):
    servers = cluster.start_servers()
    chief = cluster.start("chief")
    chief.wait_for("TRAINS", 60)
    elsewhere = {**cluster.jobs, "chief": ["127.0.0.1:1"]}
    second = cluster.start("chief", START_TIMEOUT="2")
    assert second.wait(SOON) == 1
    assert "is in use by a TensorFlow server" in second.text
    other = cluster.start("chief", jobs=elsewhere, START_TIMEOUT="2")
    assert other.wait(SOON) == 1
    assert "ClusterError" in other.text
    cluster.tell_end()
    assert chief.wait(SOON) == 0
    assert [server.wait(SOON) for server in servers] == [0, 0, 0]
