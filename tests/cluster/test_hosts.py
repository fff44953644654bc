"""Lists of hosts: Horovod's, Open MPI's, MPICH's and DeepSpeed's forms, and what each slip is told."""

from __future__ import annotations

import pytest

from tfdist.cluster.hosts import Host, parse_hostfile, parse_hosts, select
from tfdist.cluster.resolvers.slurm_names import expand_counts, expand_hosts, nodes_of_ranks
from tfdist.errors import ClusterError


def counts(hosts):
    return {host.name: len(host.slots) for host in hosts}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h1:4,h2:2", {"h1": 4, "h2": 2}),
        ("h1, h2", {"h1": 1, "h2": 1}),
        ("10.0.0.1:8", {"10.0.0.1": 8}),
        ("[fd00::1]:4,[fd00::2]", {"fd00::1": 4, "fd00::2": 1}),
        ("gpu_node-1.example.org:1", {"gpu_node-1.example.org": 1}),
        ("me@h1:4,me.too@[fd00::1]", {"h1": 4, "fd00::1": 1}),
    ],
)
def test_hosts(text, expected):
    hosts = parse_hosts(text)
    assert counts(hosts) == expected
    assert parse_hosts(",".join(map(str, hosts))) == hosts


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        (" , ", "empty"),
        ("h1,,h2", "''"),
        ("h1:0", "from 1 to 1024"),
        ("h1:2222", "from 1 to 1024"),
        ("h1:four", "'h1:four'"),
        ("h1:", "'h1:'"),
        ("h1:2,h1:2", "h1:4"),
        ("fd00::1", "[fd00::1]"),
        ("us er@h1", "can't be one"),
        ("-l@h1", "can't be one"),
        ("@h1", "can't be one"),
        ("me@", "can't be one"),
        ("-oProxyCommand=x", "can't be one"),
        ("h 1", "can't be one"),
        ("h1;reboot", "can't be one"),
    ],
)
def test_hosts_with_a_slip(text, told):
    with pytest.raises(ClusterError, match="Received") as raised:
        parse_hosts(text)
    assert told in str(raised.value)
    assert "--hosts" in str(raised.value)


HOSTFILE = """
# the machines of the lab
worker-1 slots=4   # as DeepSpeed and Open MPI write it
worker-2 slots=2 max_slots=8

worker-3:3
worker-4
"""


def test_a_hostfile():
    assert counts(parse_hostfile(HOSTFILE)) == {
        "worker-1": 4,
        "worker-2": 2,
        "worker-3": 3,
        "worker-4": 1,
    }


def test_a_line_per_slot():
    assert parse_hostfile("b\nb\na\nb\n") == (Host("b", (0, 1, 2)), Host("a"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# nothing", "names no host"),
        ("h1 slots=2\nh2 slot=2", "line 2"),
        ("h1 4", "Remove '4'"),
        ("h1 slots=", "from 1 to"),
        ("h1 slots=-1", "from 1 to"),
    ],
)
def test_a_hostfile_with_a_slip(text, told):
    with pytest.raises(ClusterError) as raised:
        parse_hostfile(text, "hosts.txt")
    assert told in str(raised.value)
    assert "hosts.txt" in str(raised.value)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({}, {"w0": (0, 1, 2, 3), "w1": (0, 1, 2, 3)}),
        ({"include": "w1"}, {"w1": (0, 1, 2, 3)}),
        ({"include": "w1:0,2@w0"}, {"w0": (0, 1, 2, 3), "w1": (0, 2)}),
        ({"exclude": "w1:0"}, {"w0": (0, 1, 2, 3), "w1": (1, 2, 3)}),
        ({"exclude": "w0"}, {"w1": (0, 1, 2, 3)}),
    ],
)
def test_include_and_exclude(option, expected):
    kept = select(parse_hosts("w0:4,w1:4"), **option)
    assert {host.name: host.slots for host in kept} == expected


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"include": "w0", "exclude": "w1"}, "either"),
        ({"include": "w7"}, "w0, w1"),
        ({"exclude": "w1:9"}, "w1:9"),
        ({"exclude": "w0@w1"}, "No host is left"),
        ({"include": "w0:"}, "w0:"),
    ],
)
def test_include_and_exclude_with_a_slip(option, told):
    with pytest.raises(ClusterError) as raised:
        select(parse_hosts("w0:4,w1:4"), **option)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("login0", ["login0"]),
        ("n[1-3,7,11-12],login0", ["n1", "n2", "n3", "n7", "n11", "n12", "login0"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("b,a", ["b", "a"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
    ],
)
def test_slurms_host_lists(text, expected):
    assert expand_hosts(text) == expected


@pytest.mark.parametrize("text", ["", "n[1-", "n1]", "n[3-1]", "n[a-b]", "a,,b", "n[1-99999999]"])
def test_slurms_host_lists_with_a_slip(text):
    with pytest.raises(ValueError, match=r"bracket|empty|range|number"):
        expand_hosts(text)


def test_slurms_counts():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    for text in ("", "2(x3", "x2", "1(x99999999)"):
        with pytest.raises(ValueError, match="form"):
            expand_counts(text)


@pytest.mark.parametrize(
    ("plane", "expected"), [(None, [0, 0, 0, 1, 2]), (1, [0, 1, 2, 0, 0]), (2, [0, 0, 1, 2, 0])]
)
def test_which_node_runs_which_rank(plane, expected):
    assert nodes_of_ranks([3, 1, 1], plane) == expected
