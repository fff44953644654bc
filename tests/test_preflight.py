"""The preflight, with real processes that need no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from support.processes import child_environment, deadline, end, held_ports

from tfdist import preflight
from tfdist.cluster import Cluster
from tfdist.errors import ClusterError
from tfdist.preflight import meeting, rendezvous
from tfdist.preflight.rendezvous import Answer, Identity, Listener, open_socket, probe

TASK = """
import logging, sys, time
logging.basicConfig(format="%(message)s", stream=sys.stdout)
from tfdist import preflight
from tfdist.cluster import Cluster
from tfdist.errors import ClusterError

timeout, delay, linger = map(float, sys.argv[1:])
time.sleep(delay)
started = time.monotonic()
cluster = Cluster.resolve()
try:
    preflight.check_own_port(cluster)
    preflight.wait_for_peers(cluster, timeout, 0.5, for_tensorflow=False)
except ClusterError as error:
    print(f"after {time.monotonic() - started:.2f} s: {error}")
    sys.exit(3)
print("met")
time.sleep(linger)
"""


@dataclasses.dataclass
class Task:
    """One process of a rendezvous: its index, its start, and a cluster of its own if it is wrong."""

    index: int
    delay: float = 0.0
    jobs: dict | None = None
    linger: float = 0.0


def meet(
    addresses: Sequence[str], tasks: Sequence[Task], timeout: float = 20.0
) -> list[tuple[int, str]]:
    """Runs the processes and returns the exit code and output of each."""
    processes = []
    try:
        for task in tasks:
            jobs = task.jobs or {"worker": list(addresses)}
            config = {"cluster": jobs, "task": {"type": "worker", "index": task.index}}
            arguments = [str(timeout), str(task.delay), str(task.linger)]
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", TASK, *arguments],
                    env=child_environment({"TF_CONFIG": json.dumps(config)}),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        until = deadline(timeout + 20)
        outputs = [process.communicate(timeout=until)[0] for process in processes]
        return [(process.returncode, out) for process, out in zip(processes, outputs)]
    finally:
        end(processes)


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    with held_ports(3) as held:
        yield held


def cluster(addresses: Sequence[str], index: int = 0) -> Cluster:
    return Cluster({"worker": tuple(addresses)}, "worker", index)


@contextlib.contextmanager
def occupied(address: str, greeting: bytes = b"") -> Iterator[None]:
    """A foreign server on the address, which sends a greeting or keeps silent."""
    host, port = address.rsplit(":", 1)
    with open_socket(host, int(port)) as server:
        server.listen()
        server.settimeout(10)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.sendall(greeting)
                    if greeting:
                        connection.close()
                    else:
                        held.append(connection)

        held: list[socket.socket] = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=5)
            for connection in held:
                connection.close()


def test_three_processes_meet_ten_times_in_a_row():
    for _ in range(10):
        with held_ports(3) as held:
            results = meet(held, [Task(0), Task(1), Task(2)])
        assert [(code, out.splitlines()[-1:]) for code, out in results] == [(0, ["met"])] * 3


def test_a_late_process_is_waited_for_and_named(addresses):
    first, second, late = meet(addresses, [Task(0), Task(1), Task(2, delay=1.5)])
    assert [first[0], second[0], late[0]] == [0, 0, 0]
    expected = rf"waiting for worker 2 at {addresses[2]} \(\d s\): refused \(no process listens"
    assert re.search(expected, first[1])


def test_a_process_that_goes_on_at_once_strands_nobody(addresses):
    """Every process leaves at another moment; none still needs one that has left."""
    tasks = [Task(0, delay=0.4), Task(1, delay=0.2), Task(2, linger=1.0)]
    assert [code for code, _ in meet(addresses, tasks)] == [0, 0, 0]


def test_missing_processes_are_all_named_at_the_deadline(addresses):
    ((code, out),) = meet(addresses, [Task(1)], timeout=2)
    assert code == 3
    assert "worker 1 waited 2 s for 2 of 2 other tasks" in out
    for index in (0, 2):
        assert f"worker {index} at {addresses[index]}: refused" in out
    assert "TFDIST_START_TIMEOUT" in out


def test_who_is_there_says_whom_it_waits_for(addresses):
    results = meet(addresses, [Task(0), Task(1)], timeout=2)
    for code, out in results:
        assert code == 3
        assert f"worker 2 at {addresses[2]}: refused" in out


@pytest.mark.parametrize("delay", [0.0, 0.7])
def test_one_task_started_twice(addresses, delay):
    results = meet(addresses, [Task(0), Task(0, delay=delay)], timeout=10)
    for code, out in results:
        assert code == 3
        assert "Two processes were both started as worker 0" in out
        assert float(out.split("after ")[1].split()[0]) < 5


def test_another_cluster_is_told_apart_at_once(addresses):
    swapped = {"worker": [addresses[0], addresses[1]]}
    results = meet(addresses, [Task(0), Task(1, jobs=swapped)], timeout=10)
    for code, out in results:
        assert code == 3
        assert "was started with another TF_CONFIG" in out
        assert float(out.split("after ")[1].split()[0]) < 5


def test_alone_there_is_nothing_to_wait_for(addresses):
    preflight.wait_for_peers(Cluster.local(), 1.0)
    preflight.wait_for_peers(cluster(addresses[:1]), 1.0)
    preflight.check_own_port(Cluster.local())
    preflight.check_own_port(cluster(addresses))


def test_the_port_is_free_again_afterwards(addresses):
    with pytest.raises(ClusterError, match=r"waited 0\.5 s"):
        preflight.wait_for_peers(cluster(addresses), 0.5)
    preflight.check_own_port(cluster(addresses))


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH\r\n"])
def test_a_port_in_use_is_named_with_its_owner(addresses, greeting):
    port = addresses[0].rsplit(":", 1)[1]
    with occupied(addresses[0], greeting):
        started = time.monotonic()
        with pytest.raises(ClusterError, match=rf"Port {port} on this host is in use") as caught:
            preflight.check_own_port(cluster(addresses))
        assert time.monotonic() - started < 5
        assert f"pid {os.getpid()}" in str(caught.value) or "pid" not in str(caught.value)


def test_a_port_in_use_without_reuse_is_named():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        for check in (
            preflight.check_own_port,
            lambda own: preflight.wait_for_peers(own, 5.0),
        ):
            with pytest.raises(ClusterError, match=f"Port {address.split(':')[1]} on this host"):
                check(cluster([address, "127.0.0.1:1"]))


def test_a_foreign_server_at_a_peers_address_is_said_to_be_one(addresses):
    with (
        occupied(addresses[1], b"220 mail\r\n"),
        pytest.raises(ClusterError, match="neither tfdist nor TensorFlow"),
    ):
        preflight.wait_for_peers(cluster(addresses[:2]), 1.0)


def test_a_tensorflow_server_counts_as_there(addresses):
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    with occupied(addresses[1], settings):
        preflight.wait_for_peers(cluster(addresses[:2]), 5.0)
    with occupied(addresses[0], settings), pytest.raises(ClusterError, match="a TensorFlow server"):
        preflight.check_own_port(cluster(addresses[:2]))


def test_the_others_wait_for_the_first_tasks_server(addresses):
    """Worker 1 has met worker 0, which never starts a server: the deadline still ends the wait."""
    other = Identity.of(cluster(addresses[:2], 0))
    host, port = addresses[0].rsplit(":", 1)
    listener = Listener(open_socket(host, int(port)), lambda: other, lambda _: None)
    try:
        own = cluster(addresses[:2], 1)
        preflight.wait_for_peers(own, 5.0, for_tensorflow=False)
        with pytest.raises(ClusterError, match=r"worker 0 at .*: it is up, and starts"):
            preflight.wait_for_peers(own, 1.0)
    finally:
        listener.close()


def test_an_address_answered_by_another_task(addresses):
    wrong = Identity.of(cluster(addresses[:2], 0))
    host, port = addresses[1].rsplit(":", 1)
    listener = Listener(open_socket(host, int(port)), lambda: wrong, lambda _: None)
    try:
        with pytest.raises(ClusterError, match="address of worker 1 is answered by worker 0"):
            preflight.wait_for_peers(cluster(addresses[:2], 0), 5.0)
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("no-such-host.invalid:2222", "no such host"),
        ("127.0.0.1:1", "refused"),
        ("x" * 70 + ".invalid:1", "unreachable|no such host"),
    ],
)
def test_how_an_address_fails(address, match):
    me = Identity("worker 0", "hash")
    assert re.search(match, probe(address, me).failure or "")


def test_a_silent_host_times_out(addresses):
    with occupied(addresses[0]):
        started = time.monotonic()
        assert "timed out" in (probe(addresses[0], Identity("worker 0", "h"), 0.3).failure or "")
        assert time.monotonic() - started < 3


def test_a_name_that_can_not_be_resolved_ends_at_the_deadline(monkeypatch, addresses):
    """Not even a name lookup that blocks may outlast the deadline."""

    def lookup(address, *_args, **_kwargs):
        if address == "slow-dns.invalid:1":
            time.sleep(4)
        return Answer(failure="no such host (test)")

    monkeypatch.setattr(meeting, "probe", lookup)
    own = cluster(addresses[:1])
    jobs = {"worker": (own.address or "", "slow-dns.invalid:1")}
    monkeypatch.setattr("tfdist.cluster.check.is_loopback", lambda host: False)
    started = time.monotonic()
    with pytest.raises(ClusterError, match="slow-dns"):
        preflight.wait_for_peers(Cluster(jobs, "worker", 0), 0.5)
    assert time.monotonic() - started < 3


def test_a_host_that_does_not_resolve_is_reported(monkeypatch, addresses):
    own = addresses[0]
    monkeypatch.setattr("tfdist.cluster.check.is_loopback", lambda host: False)
    jobs = {"worker": (own, "no-such-host.invalid:2222")}
    with pytest.raises(ClusterError, match=r"no-such-host.invalid:2222: no such host"):
        preflight.wait_for_peers(Cluster(jobs, "worker", 0), 1.0)


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_listener_is_reached_over_each_protocol(host):
    me = Identity("worker 0", "hash")
    bound = open_socket(host, 0)
    port = bound.getsockname()[1]
    listener = Listener(bound, lambda: me, lambda _: None)
    try:
        assert probe(f"127.0.0.1:{port}", me).identity == me
        if not host and bound.family == socket.AF_INET6:
            assert probe(f"[::1]:{port}", me).identity == me
    finally:
        listener.close()


def test_identities_travel_as_lines():
    me = Identity("worker 1", "abc", waiting=("worker 2",))
    assert Identity.from_line(me.to_line()) == me
    for line in (b"", b"HTTP/1.1 200 OK\r\n", b"TFDIST 1 {}\n", b"TFDIST 1 [\n", b"TFDIST 1 5\n"):
        assert Identity.from_line(line) is None


def test_a_visitor_that_says_nothing_does_not_block_the_others(addresses, monkeypatch):
    monkeypatch.setattr(rendezvous, "_TIMEOUT", 1.0)
    me = Identity("worker 0", "hash")
    host, port = addresses[0].rsplit(":", 1)
    listener = Listener(open_socket(host, int(port)), lambda: me, lambda _: None)
    try:
        with socket.create_connection((host, int(port))):
            assert probe(addresses[0], me).identity == me
    finally:
        listener.close()
