"""Recorded environments give the right TF_CONFIG, bad ones a clear error; and what the resolvers share."""

from __future__ import annotations

import itertools
import json
import logging
import os

import pytest
import recorded_environments as recorded
from recorded_environments import CASES, SLURM, Case

from tfdist import cluster as cluster_module
from tfdist.cluster import Cluster, resolvers
from tfdist.cluster.resolvers.base import Place, derived_port
from tfdist.cluster.resolvers.host_lists import is_host
from tfdist.errors import ClusterError

FOUND = [case for case in CASES if case.expected is not None]
REFUSED = [case for case in CASES if case.expected is None]


def resolve(case: Case, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """`Cluster.resolve` as on the host of the recording."""
    find = resolvers.find
    monkeypatch.setattr(resolvers, "find", lambda environ: find(environ, case.place()))
    return Cluster.resolve(case.variables())


def test_there_are_enough_recordings():
    assert len(FOUND) >= 30
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", FOUND, ids=lambda case: case.name)
def test_the_recorded_environment_gives_the_tf_config(case, monkeypatch):
    cluster = resolve(case, monkeypatch)
    assert json.loads(cluster.to_tf_config()) == case.expected
    for words in case.says:
        assert words in cluster.source
    assert Cluster.from_tf_config(cluster.to_tf_config()) == cluster


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_bad_environment_is_a_clear_error(case, monkeypatch):
    with pytest.raises(ClusterError) as raised:
        resolve(case, monkeypatch)
    for words in case.says:
        assert words in str(raised.value)
    assert "Received:" in str(raised.value)


def test_the_cluster_and_why_are_logged_once(monkeypatch, caplog):
    cluster_module._tell.cache_clear()
    with caplog.at_level(logging.INFO, "tfdist"):
        for _ in range(2):
            with monkeypatch.context() as patch:
                resolve(SLURM[0], patch)
    (record,) = caplog.records
    assert record.getMessage() == (
        "cluster: worker 1 by Slurm step 1.0, task 1 of 2 (SLURM_PROCID)"
    )
    cluster_module._tell.cache_clear()


def test_all_tasks_of_a_step_see_the_same_cluster(monkeypatch):
    """A step of 7 tasks in each of Slurm's distributions, from each task's own variables."""
    for more, nodes in (
        ("", [0, 0, 0, 1, 1, 2, 2]),
        ("SLURM_DISTRIBUTION=block:cyclic", [0, 0, 0, 1, 1, 2, 2]),
        ("SLURM_DISTRIBUTION=cyclic:block", [0, 1, 2, 0, 1, 2, 0]),
        ("SLURM_DISTRIBUTION=plane SLURM_DIST_PLANESIZE=2", [0, 0, 1, 1, 2, 2, 0]),
    ):
        seen = set()
        for rank, node in enumerate(nodes):
            here = [index for index, other in enumerate(nodes) if other == node]
            own = f"{rank} {node} {here.index(rank)} {','.join(map(str, here))}"
            case = Case("", recorded.step(20, "n[1-3]", 3, 7, "3,2(x2)", own, more), None)
            with monkeypatch.context() as patch:
                cluster = resolve(case, patch)
            assert cluster.task_index == rank
            seen.add(cluster.jobs["worker"])
        (addresses,) = seen
        assert [address.partition(":")[0] for address in addresses] == [f"n{n + 1}" for n in nodes]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("srun -N2 -n8 --distribution=plane=2", 1),
        ("a batch script without srun", None),
        ("mpirun within Slurm", 0),
        ("mpiexec -n 2", 1),
        ("Ray Train on one host", 1),
        ("SageMaker", None),
    ],
)
def test_the_rank_on_the_host(name, rank):
    (case,) = [case for case in CASES if case.name == name]
    assert resolvers.local_rank(case.variables(), case.place()) == rank


@pytest.mark.parametrize(
    ("per_task", "sees"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 SLURM_GPUS_ON_NODE=2 SLURM_STEP_GPUS=0,1", True),
        ("CUDA_VISIBLE_DEVICES=1 SLURM_GPUS_ON_NODE=2 SLURM_STEP_GPUS=1", False),
        ("CUDA_VISIBLE_DEVICES=0,1 SLURM_GPUS_ON_NODE=4 SLURM_STEP_GPUS=0,1", False),  # --gpu-bind
        ("", False),
    ],
)
def test_gpus_that_slurm_leaves_to_all_tasks_of_a_node(per_task, sees):
    text = recorded.step(6, "n[1-2]", 2, 4, "2(x2)", "3 1 1 2,3", per_task)
    assert resolvers.sees_gpus_of_others(Case("", text, None).variables()) == sees
    assert not resolvers.sees_gpus_of_others({"CUDA_VISIBLE_DEVICES": "0,1"})


def test_ports_of_jobs_lie_apart_and_below_the_ephemeral_ones():
    ports = [derived_port(str(job)) for job in range(1000, 1300)]
    assert len(set(ports)) == 300
    assert min(abs(a - b) for a, b in itertools.pairwise(ports)) >= 64
    assert all(11000 <= port <= 32768 - 64 for port in [*ports, derived_port("prterun-vm-1@1")])
    assert derived_port("7", 0) != derived_port("7", 1)


@pytest.mark.parametrize(
    ("listed", "own", "same"),
    [
        ("h1", "h1.example.org", True),
        ("H1.example.org", "h1", True),
        ("h1.a.org", "h1.b.org", False),
        ("h1", "h10", False),
        ("10.0.0.1", "10", False),
        ("10.0.0.1", "10.0.0.1", True),
    ],
)
def test_a_hosts_own_name(listed, own, same):
    assert is_host(listed, own) is same


def test_the_place_is_this_host(tmp_path):
    place = Place()
    assert place.hostname()
    assert place.is_terminal() in (True, False)
    assert place.read(str(tmp_path)) is None
    assert place.slurm_step() == "" or "SLURM_JOB_ID" in os.environ
