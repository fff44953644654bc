"""The cluster's description: reading it, its properties, and every rule it can break."""

from __future__ import annotations

import json
import pickle
import re

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError

WORKERS = ["10.0.0.1:1000", "10.0.0.2:1000"]


def tf_config(cluster, task_type="worker", index=0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})


def read(cluster, task_type="worker", index=0) -> Cluster:
    return Cluster.from_tf_config(tf_config(cluster, task_type, index))


def test_workers_only():
    cluster = read({"worker": WORKERS}, index=1)
    assert (cluster.num_workers, cluster.rank, cluster.is_chief) == (2, 1, False)
    assert (cluster.address, cluster.is_distributed) == ("10.0.0.2:1000", True)
    assert cluster.task_name == "worker 1"
    assert read({"worker": WORKERS}).is_chief


def test_a_chief_comes_first():
    jobs = {"ps": ["p:1"], "worker": ["w:1", "w:2"], "chief": ["c:1"]}
    chief = read(jobs, "chief")
    assert (chief.num_workers, chief.num_ps, chief.rank, chief.is_chief) == (3, 1, 0, True)
    worker = read(jobs, "worker", 1)
    assert (worker.rank, worker.is_chief) == (2, False)
    ps = read(jobs, "ps")
    assert (ps.rank, ps.is_chief, ps.num_workers) == (0, False, 3)
    assert [task.name for task in worker.tasks()] == ["chief 0", "worker 0", "worker 1", "ps 0"]
    assert worker.tasks()[0] == Task("chief", 0, "c:1")


@pytest.mark.parametrize("listed", [True, False])
def test_an_evaluator_is_no_part_of_the_training_cluster(listed):
    jobs = {"worker": WORKERS, **({"evaluator": ["10.0.0.3:1000"]} if listed else {})}
    evaluator = read(jobs, "evaluator")
    assert evaluator.is_evaluator
    assert "evaluator" not in evaluator.jobs
    assert (evaluator.num_workers, evaluator.is_distributed, evaluator.address) == (1, False, None)
    assert evaluator.is_chief
    assert "evaluator" not in read(jobs).jobs


def test_one_worker_is_a_cluster_but_not_distributed():
    cluster = read({"worker": WORKERS[:1]})
    assert not cluster.is_distributed
    assert cluster.address == WORKERS[0]


def test_no_cluster():
    for environ in ({}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}):
        cluster = Cluster.resolve(environ)
        assert cluster == Cluster.local()
        assert (cluster.num_workers, cluster.rank, cluster.is_chief) == (1, 0, True)
        assert (cluster.address, cluster.task_type, cluster.tasks()) == (None, None, [])
    assert Cluster.from_tf_config(Cluster.local().to_tf_config()) == Cluster.local()


def test_resolve_reads_the_environment():
    cluster = Cluster.resolve({"TF_CONFIG": tf_config({"worker": WORKERS}, "worker", 1)})
    assert (cluster.rank, cluster.source) == (1, "TF_CONFIG")


def test_round_trips():
    cluster = read({"chief": ["c:1"], "worker": ["w:1"], "ps": ["[::2]:5"]}, "worker")
    assert Cluster.from_tf_config(cluster.to_tf_config()) == cluster
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert hash(cluster) == hash(Cluster.from_tf_config(cluster.to_tf_config()))


def test_jobs_can_not_be_changed():
    with pytest.raises(TypeError):
        read({"worker": WORKERS}).jobs["worker"] = ()


def test_an_index_in_digits_is_accepted():
    assert read({"worker": WORKERS}, "worker", "1").task_index == 1


def test_other_entries_of_tf_config_are_ignored():
    text = json.dumps({**json.loads(tf_config({"worker": WORKERS})), "rpc_layer": "grpc"})
    assert Cluster.from_tf_config(text).num_workers == 2


class Spec:
    def __init__(self, jobs):
        self.jobs = jobs

    def as_dict(self):
        return self.jobs


class Resolver:
    def __init__(self, jobs, task_type=None, task_id=None):
        self.jobs, self.task_type, self.task_id = jobs, task_type, task_id

    def cluster_spec(self):
        return Spec(self.jobs)


def test_from_a_resolver():
    cluster = Cluster.from_resolver(Resolver({"worker": WORKERS}, "worker", 1))
    assert cluster == read({"worker": WORKERS}, index=1)
    assert cluster.source == "Resolver"
    assert Cluster.from_resolver(Resolver({})) == Cluster.local()


@pytest.mark.parametrize(
    ("resolver", "match"),
    [
        (object(), "has `cluster_spec"),
        (Resolver({"worker": WORKERS}), "must say which"),
        (Resolver({"worker": WORKERS}, "worker", 2), "from 0 to 1"),
    ],
)
def test_from_a_wrong_resolver(resolver, match):
    with pytest.raises(ClusterError, match=match):
        Cluster.from_resolver(resolver)


RULES = {
    "not JSON": ("{'cluster': {}}", "not valid JSON.*double quotes"),
    "not an object": ("[1]", "must be a JSON object"),
    "no cluster": ('{"task": {"type": "worker", "index": 0}}', "has no `cluster`"),
    "an empty cluster": (tf_config({}), "cluster is empty"),
    "the cluster a list": (tf_config(WORKERS), "must be an object of addresses"),
    "no task": (json.dumps({"cluster": {"worker": WORKERS}}), r"`task` must say.*\(worker\)"),
    "no type": (tf_config({"worker": WORKERS}, None), "`task` must say"),
    "no index": (
        json.dumps({"cluster": {"worker": WORKERS}, "task": {"type": "worker"}}),
        "index must be an integer",
    ),
    "unknown role": (tf_config({"workers": WORKERS}), "Unknown role in the cluster.*'worker'"),
    "the old master": (tf_config({"master": ["a:1"]}, "master"), "is called `chief`"),
    "unknown task": (tf_config({"worker": WORKERS}, "wroker"), "Unknown role in the task"),
    "own role absent": (tf_config({"worker": WORKERS}, "chief"), "not a role of this.*: worker"),
    "index too large": (tf_config({"worker": WORKERS}, "worker", 2), "from 0 to 1.*index=2"),
    "index negative": (tf_config({"worker": WORKERS}, "worker", -1), "from 0 to 1.*index=-1"),
    "index a word": (tf_config({"worker": WORKERS}, "worker", "one"), "must be an integer.*one"),
    "index a fraction": (tf_config({"worker": WORKERS}, "worker", 1.0), "must be an integer"),
    "index a truth": (tf_config({"worker": WORKERS}, "worker", True), "must be an integer"),
    "two chiefs": (tf_config({"chief": WORKERS}, "chief"), "at most one chief"),
    "evaluator alone": (tf_config({"evaluator": ["a:1"]}, "evaluator"), "nothing in this one"),
    "ps alone": (tf_config({"ps": ["a:1"]}, "ps"), "needs at least one worker"),
    "an empty role": (tf_config({"worker": []}), "has no addresses"),
    "a lone address": (tf_config({"worker": "a:1"}), "must be a list"),
    "an address a number": (tf_config({"worker": [5]}), "must be a string HOST:PORT"),
    "the same address": (tf_config({"worker": ["a:1", "a:1"]}), "same address.*worker 1"),
    "the same in two roles": (tf_config({"chief": ["a:1"], "worker": ["A:1"]}), "same address"),
    "the same host by two names": (
        tf_config({"worker": ["localhost:1", "127.0.0.1:1"]}),
        "same address",
    ),
    "no port": (tf_config({"worker": ["a"]}), "is not HOST:PORT"),
    "port 0": (tf_config({"worker": ["a:0"]}), "port outside 1 to 65535"),
    "port too large": (tf_config({"worker": ["a:65536"]}), "port outside 1 to 65535"),
    "port a word": (tf_config({"worker": ["a:http"]}), "port that is not a number"),
    "port negative": (tf_config({"worker": ["a:-5"]}), "port that is not a number"),
    "no host": (tf_config({"worker": [":5"]}), "is not HOST:PORT"),
    "a host with a blank": (tf_config({"worker": ["a b:5"]}), "can't be one"),
    "a scheme": (tf_config({"worker": ["grpc://a:5"]}), "has a scheme"),
    "a bare IPv6 address": (tf_config({"worker": ["fe80::1:5"]}), "without brackets"),
    "localhost among hosts": (
        tf_config({"worker": ["localhost:5", "b:5"]}),
        "local addresses.*worker 0 at localhost:5 beside worker 1 at b:5",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule(name):
    text, match = RULES[name]
    with pytest.raises(ClusterError, match=re.compile(match, re.DOTALL)) as caught:
        Cluster.from_tf_config(text)
    message = str(caught.value)
    assert "(from TF_CONFIG)" in message
    example = re.search(r"Such as TF_CONFIG='(.*)'\.$", message, re.DOTALL)
    assert example, "the message has a corrected example"
    assert isinstance(Cluster.from_tf_config(example[1]), Cluster), "which is right"


def test_the_example_is_the_users_own_cluster_where_only_the_task_is_wrong():
    with pytest.raises(ClusterError, match=re.escape(json.dumps(WORKERS))):
        read({"worker": WORKERS}, "worker", 5)


def test_a_large_cluster_gives_a_short_message():
    workers = [f"10.0.{n // 250}.{n % 250 + 1}:1000" for n in range(1000)]
    with pytest.raises(ClusterError) as caught:
        read({"worker": workers}, "worker", 1000)
    assert len(str(caught.value)) < 1000


def test_addresses_on_one_machine_may_all_be_local():
    assert read({"worker": ["localhost:1", "127.0.0.1:2"]}).num_workers == 2
