import json

import pytest

from tfdist.errors import LaunchError
from tfdist.launcher import LaunchSpec
from tfdist.launcher.environment import build
from tfdist.launcher.machine import Machine


def environments(workers=2, *, cores=8, gpus=(), inherited=None, **settings):
    spec = LaunchSpec(command=("true",), num_workers=workers, **settings)
    ports = range(9000, 9000 + workers)
    return build(spec, ports, "token", Machine(cores, tuple(gpus)), inherited or {})


def test_each_worker_is_told_the_cluster_and_its_place():
    found = environments(2).by_rank
    for rank, variables in enumerate(found):
        assert json.loads(variables["TF_CONFIG"]) == {
            "cluster": {"worker": ["127.0.0.1:9000", "127.0.0.1:9001"]},
            "task": {"type": "worker", "index": rank},
        }
        assert variables["TFDIST_RANK"] == variables["TFDIST_LOCAL_RANK"] == str(rank)
        assert variables["TFDIST_WORLD_SIZE"] == "2"
        assert variables["PYTHONUNBUFFERED"] == "1"


def test_one_worker_is_a_cluster_too():
    (only,) = environments(1).by_rank
    assert json.loads(only["TF_CONFIG"])["cluster"] == {"worker": ["127.0.0.1:9000"]}


def test_cores_are_shared_out():
    found = environments(3, cores=8)
    assert {e["TF_NUM_INTRAOP_THREADS"] for e in found.by_rank} == {"2"}
    assert {e["OMP_NUM_THREADS"] for e in found.by_rank} == {"2"}
    assert len(found.notices) == 1
    assert "3 workers share 8 cores" in found.notices[0]


def test_more_workers_than_cores_have_one_thread_each():
    assert environments(4, cores=2).by_rank[0]["TF_NUM_INTRAOP_THREADS"] == "1"


def test_one_worker_has_all_cores():
    found = environments(1)
    assert "TF_NUM_INTRAOP_THREADS" not in found.by_rank[0]
    assert found.notices == ()


def test_the_users_thread_limits_stay():
    found = environments(2, inherited={"OMP_NUM_THREADS": "7"}).by_rank[0]
    assert found["OMP_NUM_THREADS"] == "7"
    assert found["TF_NUM_INTRAOP_THREADS"] == "4"
    found = environments(2, env={"TF_NUM_INTRAOP_THREADS": "3", "OMP_NUM_THREADS": "3"})
    assert found.by_rank[1]["TF_NUM_INTRAOP_THREADS"] == "3"
    assert found.notices == ()


def test_precedence():
    found = environments(
        1,
        inherited={"A": "shell", "B": "shell", "TF_CPP_MIN_LOG_LEVEL": "0"},
        env={"A": "option", "PYTHONUNBUFFERED": "0"},
    ).by_rank[0]
    assert found["A"] == "option"
    assert found["B"] == "shell"
    assert found["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert found["PYTHONUNBUFFERED"] == "0"


def test_a_foreign_tf_config_is_replaced_and_that_is_said():
    found = environments(1, inherited={"TF_CONFIG": "{}"})
    assert "9000" in found.by_rank[0]["TF_CONFIG"]
    assert any("TF_CONFIG" in notice for notice in found.notices)


def test_the_start_timeout_reaches_the_workers():
    assert environments(1, start_timeout=12.5).by_rank[0]["TFDIST_START_TIMEOUT"] == "12.5"
    assert "TFDIST_START_TIMEOUT" not in environments(1).by_rank[0]


def test_a_job_within_a_job_belongs_to_both():
    found = environments(1, inherited={"TFDIST_JOB": "outer"}).by_rank[0]
    assert found["TFDIST_JOB"] == "outer/token"


def test_logical_devices_without_gpus():
    assert environments(2, devices_per_worker=3).by_rank[1]["TFDIST_DEVICES"] == "cpu:3"
    assert "TFDIST_DEVICES" not in environments(2).by_rank[0]
    assert "CUDA_VISIBLE_DEVICES" not in environments(2).by_rank[0]


def slices(*args, **kwargs):
    return [e.get("CUDA_VISIBLE_DEVICES") for e in environments(*args, **kwargs).by_rank]


def test_gpus_are_split_by_local_rank():
    assert slices(2, gpus="0123", devices_per_worker=2) == ["0,1", "2,3"]
    assert slices(2, gpus="0123", devices_per_worker=1) == ["0", "1"]
    assert slices(2, gpus="01234") == ["0,1", "2,3"]
    assert slices(2, gpus=["GPU-a", "GPU-b"]) == ["GPU-a", "GPU-b"]
    assert "TFDIST_DEVICES" not in environments(2, gpus="01", devices_per_worker=1).by_rank[0]


def test_one_worker_keeps_all_gpus():
    assert slices(1, gpus="01") == [None]
    assert slices(1, gpus="01", inherited={"CUDA_VISIBLE_DEVICES": "0,1"}) == ["0,1"]


def test_fewer_gpus_than_workers_are_shared_and_that_is_said():
    assert slices(3, gpus="01") == ["0", "1", "0"]
    assert any("share 2 GPUs" in notice for notice in environments(3, gpus="01").notices)


@pytest.mark.parametrize(("workers", "each", "gpus"), [(2, 2, "012"), (4, 1, "01")])
def test_more_gpus_than_there_are_is_an_error(workers, each, gpus):
    with pytest.raises(LaunchError, match=f"need {workers * each} GPUs"):
        environments(workers, gpus=gpus, devices_per_worker=each)
