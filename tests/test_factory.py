"""`tfdist.create`: pure decisions in this process, whole Runtimes in processes of their own."""

from __future__ import annotations

import ast
import json
import sys
import types
from pathlib import Path

import pytest
from support.processes import held_ports

from tfdist import batch_sizes, combinations, factory, same_job
from tfdist.cluster import Cluster
from tfdist.config import Config
from tfdist.errors import ClusterError, ConfigError, UnsupportedError

CASES = Path(__file__).parent / "cases" / "factory_cases.py"

TWO = Cluster({"worker": ("a:1", "b:1")}, "worker", 0)
WITH_PS = Cluster({"chief": ("d:1",), "worker": ("a:1", "b:1"), "ps": ("c:1",)}, "chief", 0)
NO_CHIEF = Cluster({"worker": ("a:1", "b:1"), "ps": ("c:1",)}, "worker", 0)
BESIDE_PS = Cluster({"chief": ("d:1",), "worker": ("a:1",), "ps": ("c:1",)}, "evaluator", 0)
ONE = Cluster({"worker": ("a:1",)}, "worker", 0)
EVALUATOR = Cluster({"worker": ("a:1", "b:1")}, "evaluator", 0)


@pytest.mark.parametrize(
    ("settings", "replicas", "expected"),
    [
        ({}, 1, (32, 32)),
        ({}, 4, (32, 8)),
        ({}, 3, (33, 11)),
        ({}, 64, (64, 1)),
        ({"global_batch_size": 12}, 3, (12, 4)),
        ({"per_replica_batch_size": 5}, 3, (15, 5)),
    ],
)
def test_batch_sizes(settings, replicas, expected):
    assert batch_sizes.batch_sizes(Config(**settings), replicas) == expected


@pytest.mark.parametrize(
    ("size", "replicas", "match"),
    [
        (2, 3, r"smaller than the 3 replicas.*multiple of 3, such as 3;"),
        (8, 3, r"does not divide over the 3 replicas.*such as 6 or 9;"),
    ],
)
def test_a_global_batch_that_does_not_fit(size, replicas, match):
    with pytest.raises(ConfigError, match=match):
        batch_sizes.batch_sizes(Config(global_batch_size=size), replicas)


@pytest.mark.parametrize(
    ("strategy", "cluster", "devices", "expected"),
    [
        ("auto", Cluster.local(), 1, "single"),
        ("auto", Cluster.local(), 4, "mirrored"),
        ("auto", TWO, 1, "multi_worker"),
        ("auto", ONE, 1, "single"),
        ("auto", ONE, 2, "mirrored"),
        ("auto", EVALUATOR, 2, "single"),
        ("multi_worker", EVALUATOR, 1, "single"),
        ("multi_worker", ONE, 1, "multi_worker"),
        ("mirrored", Cluster.local(), 1, "mirrored"),
        ("mirrored", ONE, 2, "mirrored"),
        ("auto", WITH_PS, 1, "parameter_server"),
        ("parameter_server", WITH_PS, 2, "parameter_server"),
        ("parameter_server", BESIDE_PS, 2, "single"),
    ],
)
def test_the_strategy(strategy, cluster, devices, expected):
    config = Config(strategy=strategy)
    combinations.check(config, cluster)
    assert combinations.strategy_name(config, cluster, devices) == expected


@pytest.mark.parametrize(
    ("strategy", "cluster", "error", "match"),
    [
        ("multi_worker", Cluster.local(), ConfigError, "needs a cluster.*allow_single"),
        ("mirrored", TWO, ConfigError, "each of the 2 workers would train its own model, alone"),
        ("single", TWO, ConfigError, "would train its own model, alone"),
        ("single", WITH_PS, ConfigError, "a cluster of 4 tasks"),
        ("multi_worker", WITH_PS, ConfigError, "no parameter servers"),
        ("auto", NO_CHIEF, ClusterError, "no task of role chief.*--workers 2 --ps 1"),
        ("parameter_server", TWO, ClusterError, "no task of role chief, ps"),
        ("parameter_server", Cluster.local(), ConfigError, "not in one.*--workers 2 --ps 1"),
        ("pipeline", TWO, UnsupportedError, "'pipeline' is not part.*auto, single, mirrored"),
        ("hybrid", EVALUATOR, UnsupportedError, "not part of this version"),
        ("tpu", TWO, ConfigError, "One process drives"),
    ],
)
def test_combinations_that_can_not_work(strategy, cluster, error, match):
    with pytest.raises(error, match=match):
        combinations.check(Config(strategy=strategy), cluster)


@pytest.mark.parametrize(
    ("name", "settings", "cluster", "expected"),
    [
        ("single", {}, EVALUATOR, 1),
        ("mirrored", {}, Cluster.local(), 3),
        ("multi_worker", {}, TWO, 6),
        ("parameter_server", {}, WITH_PS, 1),
        ("parameter_server", {"synchronous": True}, WITH_PS, 2),
    ],
)
def test_how_many_replicas_share_a_batch(name, settings, cluster, expected):
    config = Config().replace(**settings)
    assert batch_sizes.replica_count(name, config, cluster, devices=3) == expected


@pytest.mark.parametrize(("role", "expected"), [("chief", 0), ("worker", 1), ("ps", 1)])
def test_who_serves(role, expected):
    assert combinations.is_server(Cluster(WITH_PS.jobs, role, 0)) is bool(expected)
    assert not combinations.is_server(TWO)
    assert not combinations.is_server(BESIDE_PS)
    assert BESIDE_PS.jobs["chief"] == ("d:1",), "an evaluator knows where its chief is"


def test_alone_by_permission(caplog):
    combinations.check(Config(strategy="multi_worker", allow_single=True), Cluster.local())
    assert "trains alone" in caplog.text


def test_nccl_needs_gpus():
    config = Config.resolve({"implementation": "nccl"}, {}, {})
    combinations.check_devices(config, "multi_worker", "GPU")
    combinations.check_devices(config, "single", "CPU")
    for name in ("mirrored", "multi_worker"):
        with pytest.raises(ConfigError, match=r"NCCL works between GPUs only.*implementation=nccl"):
            combinations.check_devices(config, name, "CPU")


def test_differences_between_workers():
    facts = [{"seed": 1, "devices": "1 CPU"}, {"seed": 1, "devices": "1 GPU"}, {"seed": 3}]
    assert same_job.differences(facts[:1]) == []
    assert same_job.differences(facts) == [
        "seed: 3 on worker 2, 1 on worker 0",
        "devices: 1 GPU on worker 1, 1 CPU on worker 0",
    ]


def stand_in(
    monkeypatch, *, tensorflow="2.21.0", keras="3.15.1", backend="tensorflow", active=None
):
    """Puts modules in the place of TensorFlow and Keras that only tell what they are."""
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    modules = {
        "tensorflow": types.SimpleNamespace(__version__=tensorflow),
        "keras": types.SimpleNamespace(
            __version__=keras,
            config=types.SimpleNamespace(backend=lambda: backend),
            distribution=types.SimpleNamespace(distribution=lambda: active),
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("found", "match"),
    [
        (
            {"tensorflow": "2.16.1"},
            r"needs tensorflow 2\.21 or later: .*Received: tensorflow 2\.16",
        ),
        ({"keras": "2.15.0"}, r"needs keras 3\.12 or later: .*pip install"),
        ({"keras": "3.9.0"}, r"needs keras 3\.12"),
        ({"backend": "jax"}, "needs Keras's TensorFlow backend.*backend jax"),
        ({"active": object()}, "keras.distribution has no effect on the TensorFlow backend"),
    ],
)
def test_the_environment_that_does_not_fit(monkeypatch, found, match):
    stand_in(monkeypatch, **found)
    with pytest.raises(ConfigError, match=match):
        factory._check_environment()


@pytest.mark.parametrize("version", ["2.21.0", "2.21.0-rc1", "2.22.0.dev20260101", "3.0"])
def test_versions_that_do(monkeypatch, version):
    stand_in(monkeypatch, tensorflow=version)
    factory._check_environment()


def test_a_backend_in_the_environment_is_refused_before_keras_is_imported(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    with pytest.raises(ConfigError, match=r"backend torch.*environment KERAS_BACKEND"):
        factory._check_environment()


def run(run_group, case: str, n: int = 1, **options) -> list[dict]:
    """Runs a case and returns what each process found out, with its log."""
    options.setdefault("cluster", n > 1)
    found = []
    for result in run_group(CASES, n, [case], 120, **options):
        (line,) = [line for line in result.stdout.splitlines() if line.startswith("RESULT ")]
        found.append({**json.loads(line[7:]), "log": result.stderr})
    return found


def test_auto_on_several_devices(run_group):
    (found,) = run(run_group, "auto_on_four_cpus")
    assert (found["strategy"], found["name"]) == ("MirroredStrategy", "mirrored")
    assert (found["replicas"], found["batches"]) == (4, [32, 8])
    assert (found["rank"], found["chief"], found["workers"]) == (0, True, 1)
    assert (found["precision"], found["seed"]) == ("mixed_bfloat16", 5)
    assert found["draws"][0] == found["draws"][1], "the seed holds"
    assert found["rows"] == [32, 18]
    assert found["loss"][-1] < found["loss"][0]
    assert found["shuffled"] == [True, False], "training data is shuffled, test data is not"
    line = (
        "1 worker x 4 devices = 4 replicas, strategy mirrored, precision mixed_bfloat16, "
        "global batch 32, 8 per replica"
    )
    assert f"INFO:tfdist.factory:{line}" in found["log"]
    assert found["says"] == f"<tfdist.Runtime: {line}>"


def test_single(run_group):
    (found,) = run(run_group, "single")
    assert (found["strategy"], found["replicas"]) == ("SingleDeviceStrategy", 1)
    assert (found["batches"], found["floatx"]) == ([7, 7], "float64")


def test_multi_worker_alone_by_permission(run_group):
    (found,) = run(run_group, "allowed_alone")
    assert (found["name"], found["replicas"]) == ("multi_worker", 1)
    assert "this process trains alone" in found["log"]


def test_a_cluster(run_group):
    first, second = run(run_group, "cluster_of_two", 2)
    assert {first["strategy"], second["strategy"]} == {"MultiWorkerMirroredStrategy"}
    assert [first["rank"], second["rank"]] == [0, 1]
    assert [first["chief"], second["chief"]] == [True, False]
    assert first["seed"] == second["seed"], "both shuffle alike, though no seed was given"
    for found in (first, second):
        assert (found["replicas"], found["batches"]) == (4, [12, 3])
        assert "2 workers x 2 devices = 4 replicas" in found["log"]
    assert "global batch 12, 3 per replica; this is worker 1" in second["log"]


def test_workers_with_different_settings_all_fail(run_group):
    for found in run(run_group, "different_settings", 2):
        assert found["error"] == "ConfigError"
        for part in (
            "global_batch_size: 8 on worker 1, 4 on worker 0",
            "devices: 2 CPU on worker 1, 1 CPU on worker 0",
            "log_dir: given on worker 1, None on worker 0",
        ):
            assert part in found["message"]


def test_an_evaluator_never_waits_for_the_training_cluster(run_group):
    with held_ports(2) as addresses:
        config = {"cluster": {"worker": addresses}, "task": {"type": "evaluator", "index": 0}}
        environment = {"TF_CONFIG": json.dumps(config)}
        (found,) = run(run_group, "in_an_evaluator", env=environment, cluster=False)
    assert (found["strategy"], found["replicas"]) == ("SingleDeviceStrategy", 1)
    assert "this is evaluator 0" in found["says"]


def test_every_case_is_used():
    tree = ast.parse(CASES.read_text())
    cases = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} - {
        "facts",
        "trained",
    }
    text = Path(__file__).read_text()
    assert all(f'"{case}"' in text for case in cases)
