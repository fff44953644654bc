"""One table of wrong configurations: each gives one clear TfdistError, in a stated time.

Most rows are told without TensorFlow, in this process. The others need a process of their own,
which runs several rows one after another: starting TensorFlow costs seconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from absl import flags as absl_flags
from support.processes import child_environment, deadline, end

import tfdist
from tfdist import flags
from tfdist.cluster import Cluster
from tfdist.config import Communication, Config, Data, Pipeline, Recovery
from tfdist.errors import (
    ClusterError,
    ConfigError,
    DataError,
    ScopeError,
    TfdistError,
    UnsupportedError,
)

CASES = Path(__file__).parent / "cases" / "bad_input_cases.py"
WORKERS = ["10.0.0.1:2222", "10.0.0.2:2222"]
AT_ONCE = 1.0  # seconds
SOON = 10.0  # seconds: looks at devices or ports, or builds a small model
AFTER_ITS_TIMEOUT = 10.0  # seconds: waits for peers, for the one second that the case sets


@dataclass(frozen=True)
class Bad:
    """A wrong configuration.

    `act` makes the mistake in this process, or names a case of bad_input_cases.py.
    """

    act: Callable[[], object] | str
    error: type[TfdistError]
    match: str
    within: float = AT_ONCE


def tf_config(cluster: object, task: object = ("worker", 0), **options: object) -> Callable:
    """Calls create() in a process with this TF_CONFIG."""
    entry = {"type": task[0], "index": task[1]} if isinstance(task, tuple) else task
    text = cluster if isinstance(cluster, str) else json.dumps({"cluster": cluster, "task": entry})
    return lambda: in_environment({"TF_CONFIG": text}, **options)


def in_environment(environ: dict[str, str], **options: object) -> object:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        return tfdist.create(**options)


def file(name: str, text: str) -> Callable:
    """Calls create() with a file of this content; it is written to the current directory."""

    def act() -> object:
        Path(name).write_text(text)
        return tfdist.create(name)

    return act


def flag(*arguments: str) -> Callable:
    """Builds the Config from these flags."""

    def act() -> object:
        values = absl_flags.FlagValues()
        flags.define(values)
        values(["script", *arguments])
        return flags.config_from_flags(values)

    return act


TABLE = {
    # Names
    "unknown setting": Bad(
        lambda: tfdist.create(stratgy="mirrored"), ConfigError, "`stratgy`.*Did you mean 'strategy'"
    ),
    "unknown field of Config": Bad(
        lambda: Config(presision="float32"), ConfigError, "Did you mean 'precision'"
    ),
    "unknown field of a group": Bad(
        lambda: Data(shufle=True), ConfigError, "`Data` has no field `shufle`.*'shuffle'"
    ),
    "field of another group": Bad(
        lambda: tfdist.create(data={"stages": 2}), ConfigError, "belongs in `pipeline`"
    ),
    "field given twice": Bad(
        lambda: tfdist.create({"cache": True, "data": {"cache": False}}),
        ConfigError,
        "`cache` is given twice",
    ),
    "group that is no mapping": Bad(
        lambda: tfdist.create(data="digits"), ConfigError, "`data` must be a mapping or a Data"
    ),
    "config of a wrong type": Bad(
        lambda: tfdist.create(17), ConfigError, "`config` must be a Config, a mapping, or the path"
    ),
    # Values
    "unknown strategy": Bad(
        lambda: tfdist.create(strategy="mirored"),
        ConfigError,
        r"`strategy` must be one of auto.*from create\(strategy=\.\.\.\).*Did you mean 'mirrored'",
    ),
    "strategy of a later version": Bad(
        lambda: tfdist.create(strategy="pipeline"),
        UnsupportedError,
        "'pipeline' is not part of this version.*auto, single, mirrored, multi_worker",
    ),
    "unknown precision": Bad(
        lambda: tfdist.create(precision="mixed_bfloat8"),
        ConfigError,
        "`precision` must be one of.*Did you mean 'mixed_bfloat16'",
    ),
    "unknown devices": Bad(
        lambda: Config(devices="tpu"), ConfigError, r"`devices` must be one of: auto \| cpu"
    ),
    "no CPU devices": Bad(lambda: Config(devices="cpu:0"), ConfigError, "between 1 and 1024"),
    "a GPU twice": Bad(lambda: Config(devices="gpu:1,1"), ConfigError, "name each GPU once"),
    "batch of no rows": Bad(
        lambda: tfdist.create(global_batch_size=0), ConfigError, "must be an integer >= 1"
    ),
    "batch as text": Bad(
        lambda: tfdist.create(global_batch_size="32"), ConfigError, r"'32' \(str\)"
    ),
    "batch of a fraction": Bad(
        lambda: tfdist.create(global_batch_size=8.0), ConfigError, r"8\.0 \(float\)"
    ),
    "batch of True rows": Bad(lambda: tfdist.create(global_batch_size=True), ConfigError, "bool"),
    "both batch sizes": Bad(
        lambda: tfdist.create(global_batch_size=8, per_replica_batch_size=4),
        ConfigError,
        "exclude each other.*global_batch_size=8, per_replica_batch_size=4",
    ),
    "negative seed": Bad(lambda: Config(seed=-1), ConfigError, "`seed` must be .* from 0 to"),
    "deterministic without a seed": Bad(
        lambda: Config(deterministic=True), ConfigError, "`deterministic` needs a seed"
    ),
    "truth as text": Bad(lambda: Data(cache="no"), ConfigError, "`cache` must be true or false"),
    "empty shuffle buffer": Bad(lambda: Data(shuffle_buffer=0), ConfigError, "integer >= 1"),
    "parallel calls of -2": Bad(lambda: Data(parallel_calls=-2), ConfigError, r"\(or -1\)"),
    "unknown sharding": Bad(lambda: Data(shard="auto"), ConfigError, "global, local, none"),
    "empty data set name": Bad(lambda: Data(dataset=""), ConfigError, "`dataset` must be a name"),
    "unknown schedule": Bad(lambda: Pipeline(schedule="f1b1"), ConfigError, "Did you mean '1f1b'"),
    "balance of one unknown word": Bad(
        lambda: Pipeline(balance="flop"), ConfigError, "Did you mean 'flops'"
    ),
    "balance of names and counts": Bad(
        lambda: Pipeline(balance=["a", 2]), ConfigError, "list of names or of integers"
    ),
    "memory in apples": Bad(
        lambda: Pipeline(memory_limit="2 apples"), ConfigError, "bytes, such as 16GiB"
    ),
    "no memory": Bad(lambda: Pipeline(memory_limit=0), ConfigError, "bytes, such as 16GiB"),
    "unknown recomputation": Bad(
        lambda: Pipeline(recompute="ful"), ConfigError, "Did you mean 'full'"
    ),
    "unknown communication": Bad(
        lambda: Communication(implementation="gloo"), ConfigError, "one of auto, ring, nccl"
    ),
    "timeout of no time": Bad(
        lambda: Communication(collective_timeout=0), ConfigError, "greater than 0"
    ),
    "endless timeout": Bad(
        lambda: Config(start_timeout=float("inf")), ConfigError, "a number greater than 0"
    ),
    "backup frequency of a word": Bad(
        lambda: Recovery(backup_freq="step"), ConfigError, "epoch or an integer >= 1"
    ),
    "unknown model": Bad(
        lambda: tfdist.models.get("resnet5"), ConfigError, "'resnet5'.*Did you mean 'resnet50'"
    ),
    # Files, flags, environment
    "missing file": Bad(lambda: tfdist.create("nope.yaml"), ConfigError, r"not exist.*nope\.yaml"),
    "broken YAML": Bad(
        file("a.yaml", "seed: 1\nstrategy: [mirrored\n"), ConfigError, "not valid YAML.*line 3.*a.y"
    ),
    "broken JSON": Bad(file("a.json", '{"seed": }'), ConfigError, r"not valid JSON.*line 1.*a\.js"),
    "list in a file": Bad(file("a.yaml", "- seed\n"), ConfigError, "must hold a mapping"),
    "unknown key in a file": Bad(
        file("a.yaml", "global_batch: 8\n"), ConfigError, r"from a\.yaml.*'global_batch_size'"
    ),
    "key twice in a file": Bad(file("a.yaml", "seed: 1\nseed: 2\n"), ConfigError, "line 2"),
    "wrong type in a file": Bad(
        file("a.yaml", "global_batch_size: [8]\n"), ConfigError, r"\(list\) \(from a\.yaml\)"
    ),
    "wrong flag": Bad(flag("--seed=1.5"), ConfigError, r"'1\.5' \(str\) \(from --seed\)"),
    "flag with a missing file": Bad(flag("--config=nope.yaml"), ConfigError, r"nope\.yaml"),
    "wrong environment": Bad(
        lambda: in_environment({"TFDIST_SHUFFLE": "maybe"}),
        ConfigError,
        "from environment TFDIST_SHUFFLE",
    ),
    "another Keras backend": Bad(
        "keras_backend", ConfigError, "backend jax.*KERAS_BACKEND=tensorflow", SOON
    ),
    # TF_CONFIG; tests/test_cluster.py has every rule
    "TF_CONFIG is not JSON": Bad(tf_config("{'cluster': 1}"), ClusterError, "not valid JSON"),
    "TF_CONFIG is a list": Bad(tf_config("[]"), ClusterError, "must be a JSON object"),
    "no task": Bad(tf_config({"worker": WORKERS}, {}), ClusterError, "`task` must say"),
    "empty cluster": Bad(tf_config({}), ClusterError, "cluster is empty"),
    "unknown role": Bad(tf_config({"wroker": WORKERS}), ClusterError, "Did you mean 'worker'"),
    "own role not in the cluster": Bad(
        tf_config({"worker": WORKERS}, ("chief", 0)), ClusterError, "which has: worker"
    ),
    "index out of range": Bad(
        tf_config({"worker": WORKERS}, ("worker", 2)), ClusterError, "from 0 to 1.*index=2"
    ),
    "negative index": Bad(tf_config({"worker": WORKERS}, ("worker", -1)), ClusterError, "index=-1"),
    "index that is no number": Bad(
        tf_config({"worker": WORKERS}, ("worker", "first")), ClusterError, "must be an integer"
    ),
    "two chiefs": Bad(tf_config({"chief": WORKERS}, ("chief", 0)), ClusterError, "most one chief"),
    "the same address twice": Bad(
        tf_config({"worker": [WORKERS[0], WORKERS[0]]}), ClusterError, "worker 0 and for worker 1"
    ),
    "localhost among other hosts": Bad(
        tf_config({"worker": ["localhost:2222", WORKERS[1]]}), ClusterError, "local addresses"
    ),
    "port 0": Bad(tf_config({"worker": ["a:0", "b:0"]}), ClusterError, "port outside 1 to 65535"),
    "no port": Bad(tf_config({"worker": ["a", "b"]}), ClusterError, "is not HOST:PORT"),
    "evaluator alone": Bad(
        tf_config({"evaluator": ["a:1"]}, ("evaluator", 0)), ClusterError, "nothing in this one"
    ),
    "resolver of a wrong kind": Bad(
        lambda: Cluster.from_resolver({"worker": WORKERS}), ClusterError, "has `cluster_spec"
    ),
    # Strategy and cluster
    "multi_worker without a cluster": Bad(
        lambda: tfdist.create(strategy="multi_worker"), ConfigError, "train alone.*tfdist run"
    ),
    "mirrored in a cluster": Bad(
        tf_config({"worker": WORKERS}, strategy="mirrored"), ConfigError, "2 workers would train"
    ),
    "single in a cluster": Bad(
        tf_config({"worker": WORKERS}, strategy="single"), ConfigError, "2 workers would train"
    ),
    "multi_worker with parameter servers": Bad(
        tf_config({"worker": WORKERS, "ps": ["c:1"]}, strategy="multi_worker"),
        ConfigError,
        "no parameter servers",
    ),
    "parameter servers without a chief": Bad(
        tf_config({"worker": WORKERS, "ps": ["c:1"]}),
        ClusterError,
        "no task of role chief .*tfdist run --workers 2 --ps 1 script.py",
    ),
    "parameter servers without a worker": Bad(
        tf_config({"chief": ["a:1"], "ps": ["c:1"]}, ("ps", 0)), ClusterError, "of role worker"
    ),
    "parameter_server without a ps": Bad(
        tf_config({"chief": ["a:1"], "worker": WORKERS}, strategy="parameter_server"),
        ClusterError,
        "no task of role ps",
    ),
    "backup workers of asynchronous steps": Bad(
        tf_config(
            {"chief": ["a:1"], "worker": WORKERS, "ps": ["c:1"]}, ("chief", 0), backup_workers=1
        ),
        ConfigError,
        "backup_workers=1, synchronous=False.*Set synchronous=True",
    ),
    "more backup workers than workers": Bad(
        tf_config(
            {"chief": ["a:1"], "worker": WORKERS, "ps": ["c:1"]},
            ("chief", 0),
            synchronous=True,
            backup_workers=len(WORKERS),
        ),
        ConfigError,
        "at least one|one worker at least.*Set backup_workers to at most",
    ),
    "parameter_server without a cluster": Bad(
        lambda: tfdist.create(strategy="parameter_server"),
        ConfigError,
        "is not in one.*tfdist run --workers 2 --ps 1 script.py",
    ),
    "mirrored with parameter servers": Bad(
        tf_config(
            {"chief": ["a:1"], "worker": WORKERS, "ps": ["c:1"]}, ("chief", 0), strategy="mirrored"
        ),
        ConfigError,
        "Use strategy='parameter_server'",
    ),
    # Devices, ports, peers: before TensorFlow initialises
    "keras.distribution": Bad("keras_distribution", ConfigError, "no effect on the Ten", SOON),
    "missing GPU": Bad("missing_gpu", ConfigError, "gpu:0, gpu:3.*This process sees: cpu", SOON),
    "no GPU": Bad("no_gpu", ConfigError, "No GPU here", SOON),
    "port in use": Bad("port_in_use", ClusterError, r"Port \d+ on this host is in use", SOON),
    "unreachable peer": Bad(
        "peer_missing",
        ClusterError,
        r"waited 1 s for 1 of 1 other tasks.*worker 1 at 127\.0\.0\.1:\d+: refused",
        AFTER_ITS_TIMEOUT,
    ),
    "unreachable peer of a strategy class": Bad(
        "class_peer_missing", ClusterError, "worker 1 at .*: refused", AFTER_ITS_TIMEOUT
    ),
    "strategy class with a wrong index": Bad(
        "class_index_out_of_range", ClusterError, "from 0 to 1.*index=2", SOON
    ),
    "strategy class with parameter servers": Bad(
        "class_with_ps", ClusterError, "no parameter servers", SOON
    ),
    "worker and ps that are not there": Bad(
        "servers_missing",
        ClusterError,
        r"The chief waited 1 s for 2 of 2 workers and ps.*worker 0 at 127.*ps 0 at .*: refused",
        AFTER_ITS_TIMEOUT,
    ),
    "port of a ps in use": Bad(
        "port_of_a_ps_in_use", ClusterError, r"Port \d+ on this host is in use", SOON
    ),
    "NCCL without GPUs": Bad("nccl_on_cpus", ConfigError, "NCCL works between GPUs only", SOON),
    "batch smaller than the replicas": Bad(
        "batch_smaller_than_the_replicas", ConfigError, "smaller than the 4 replicas", SOON
    ),
    "batch not divisible": Bad(
        "batch_not_divisible", ConfigError, "divide over the 4 replicas.*such as 8 or 12", SOON
    ),
    # After a first create()
    "second create with other settings": Bad(
        "second_create", ConfigError, "devices: cpu:2 .*was cpu:4.*restart the process", SOON
    ),
    "second create in a cluster": Bad(
        "second_create_in_a_cluster", ConfigError, "TF_CONFIG: .*was no TF_CONFIG", SOON
    ),
    "TF_CONFIG set too late": Bad(
        "cluster_set_too_late", ConfigError, "TF_CONFIG was set after tfdist.create.*alone", SOON
    ),
    "model built outside the scope": Bad(
        "model_outside_the_scope", ScopeError, "outside the strategy's scope", SOON
    ),
    "optimizer made outside the scope": Bad(
        "optimizer_outside_the_scope", ScopeError, "optimizer .*outside the scope", SOON
    ),
    "missing device": Bad("missing_device", ConfigError, "CPU:5 does not exist", SOON),
    "device named twice": Bad("device_named_twice", ConfigError, "CPU:0 is named twice", SOON),
    "NCCL between CPUs": Bad("nccl_between_cpus", ConfigError, "NCCL works between GPUs", SOON),
    "unknown data set": Bad("unknown_dataset", DataError, "digist.*Did you mean 'digits'", SOON),
    "unknown split": Bad("unknown_split", DataError, "trian", SOON),
    "unknown option of a data set": Bad(
        "unknown_dataset_option", ConfigError, "Did you mean 'shuffle_buffer'", SOON
    ),
    "wrong option of a data set": Bad(
        "wrong_dataset_option", ConfigError, "`shuffle_buffer` must be an integer >= 1", SOON
    ),
    # After another use of TensorFlow
    "devices after TensorFlow": Bad(
        "devices_after_tensorflow", ConfigError, "already initialised.*Restart the process", SOON
    ),
    "cluster after TensorFlow": Bad(
        "cluster_after_tensorflow", ConfigError, "already initialised.*first thing", SOON
    ),
    "strategy class after TensorFlow": Bad(
        "class_after_tensorflow", ConfigError, "already initialised.*first thing", SOON
    ),
}

# One process each; the cases of a process run in the order of the table.
PROCESSES = {
    "keras_backend": ({"KERAS_BACKEND": "jax"}, ["keras_backend"]),
    "after": (
        {},
        ["devices_after_tensorflow", "cluster_after_tensorflow", "class_after_tensorflow"],
    ),
}
PROCESSES["first"] = (
    {},
    [
        row.act
        for row in TABLE.values()
        if isinstance(row.act, str) and all(row.act not in own for _, own in PROCESSES.values())
    ],
)
IN_PROCESS = [name for name, row in TABLE.items() if callable(row.act)]
ELSEWHERE = [name for name, row in TABLE.items() if isinstance(row.act, str)]


def check(row: Bad, kinds: list[str], message: str, seconds: float) -> None:
    assert row.error.__name__ in kinds, f"{kinds[:1]}: {message}"
    assert re.search(row.match, message, re.DOTALL), message
    assert len(message) < 2000
    assert seconds < deadline(row.within), "told too late"


def test_the_table_is_as_long_as_promised():
    assert len(TABLE) >= 40


@pytest.mark.parametrize("name", IN_PROCESS)
def test_without_tensorflow(name, monkeypatch, tmp_path):
    row = TABLE[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert callable(row.act)
    started = time.monotonic()
    with pytest.raises(TfdistError) as caught:
        row.act()
    kinds = [kind.__name__ for kind in type(caught.value).__mro__]
    check(row, kinds, str(caught.value), time.monotonic() - started)


@pytest.fixture(scope="module")
def outcomes() -> Callable[[str], dict]:
    """Runs the process that a case belongs to, once, and returns what the case raised."""
    found: dict[str, dict] = {}
    logs: dict[str, str] = {}

    def outcome(case: str) -> dict:
        process = next(name for name, (_, cases) in PROCESSES.items() if case in cases)
        if process not in logs:
            environ, cases = PROCESSES[process]
            logs[process] = run(cases, environ, found)
        assert case in found, f"{case} did not end; the process printed:\n{logs[process]}"
        return found[case]

    return outcome


def run(cases: list[str], environ: dict[str, str], found: dict[str, dict]) -> str:
    """Runs cases in one process; collects their results and returns its log."""
    process = subprocess.Popen(
        [sys.executable, CASES, *cases],
        env=child_environment(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        log, _ = process.communicate(timeout=deadline(120))
    except subprocess.TimeoutExpired as expired:
        log = (expired.stdout or b"").decode(errors="replace")
    finally:
        end([process])
    for line in log.splitlines():
        if line.startswith("RESULT "):
            result = json.loads(line[7:])
            found[result["case"]] = result
    return log


@pytest.mark.parametrize("name", ELSEWHERE)
def test_in_a_process_of_its_own(name, outcomes):
    row = TABLE[name]
    raised = outcomes(row.act)
    assert raised["error"] is not None, "nothing was raised"
    check(row, raised["kinds"], raised["message"], raised["seconds"])
