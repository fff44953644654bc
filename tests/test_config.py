"""Config: types, names, files, precedence and origins."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tfdist.config import Communication, Config, Data, ParameterServer, Pipeline, Recovery
from tfdist.config.device_spec import DeviceSpec
from tfdist.config.layers import slots
from tfdist.errors import ConfigError


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in slots(Config):
        monkeypatch.delenv(f"TFDIST_{name.upper()}", raising=False)


def test_defaults_are_those_of_the_contract():
    assert Config().to_dict() == {
        "strategy": "auto",
        "precision": "float32",
        "devices": "auto",
        "gpu_memory_limit": None,
        "global_batch_size": None,
        "per_replica_batch_size": None,
        "seed": None,
        "deterministic": False,
        "sync_batch_norm": False,
        "allow_single": False,
        "start_timeout": 300.0,
        "verbose": "auto",
        "communication": {
            "implementation": "auto",
            "bytes_per_pack": 0,
            "collective_timeout": None,
        },
        "data": {
            "dataset": "digits",
            "data_dir": None,
            "shuffle": True,
            "shuffle_buffer": 10_000,
            "cache": True,
            "parallel_calls": -1,
            "prefetch": -1,
            "drop_remainder": False,
            "shard": "global",
        },
        "parameter_server": {
            "synchronous": False,
            "backup_workers": 0,
            "in_flight": 4,
            "placement": "bytes",
            "device_filters": True,
            "worker_timeout": 300.0,
        },
        "pipeline": {
            "stages": 1,
            "microbatches": 1,
            "schedule": "1f1b",
            "chunks": 1,
            "balance": "time",
            "recompute": "none",
            "memory_limit": None,
            "replicas": 1,
        },
        "recovery": {
            "backup_dir": None,
            "backup_freq": "epoch",
            "checkpoint_dir": None,
            "log_dir": None,
        },
    }


def test_is_frozen_hashable_and_picklable():
    config = Config(strategy="mirrored", data=Data(shuffle=False))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.strategy = "single"
    assert hash(config) == hash(Config(strategy="mirrored", data=Data(shuffle=False)))
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert copy.origin("shuffle") == config.origin("shuffle") != "default"


def test_field_names_do_not_repeat_between_groups():
    owners = (Config, Communication, Data, ParameterServer, Pipeline, Recovery)
    names = [field.name for owner in owners for field in dataclasses.fields(owner)]
    assert len(names) == len(set(names))


def test_every_field_has_a_help_text():
    assert all(slot.help for slot in slots(Config).values())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"global_batch_size": np.int64(8)}, 8),
        ({"start_timeout": 5}, 5.0),
        ({"start_timeout": np.float32(0.5)}, 0.5),
        ({"deterministic": np.bool_(False)}, False),
        ({"data_dir": Path("/data")}, "/data"),
        ({"verbose": 1}, 1),
        ({"verbose": "auto"}, "auto"),
        ({"backup_freq": 100}, 100),
        ({"devices": "CPU:4"}, "cpu:4"),
        ({"devices": "gpu:0, 1"}, "gpu:0,1"),
        ({"prefetch": 0}, 0),
        ({"recompute": True}, "full"),
        ({"recompute": False}, "none"),
        ({"memory_limit": "16GiB"}, 16 * 2**30),
        ({"memory_limit": "512 MB"}, 512_000_000),
        ({"memory_limit": 1000}, 1000),
        ({"balance": "flops"}, "flops"),
        ({"balance": ["a", "b"]}, ("a", "b")),
        ({"balance": "2, 3,4"}, (2, 3, 4)),
        ({"balance": (1, np.int64(2))}, (1, 2)),
    ],
)
def test_values_are_brought_to_plain_types(changes, expected):
    (name,) = changes
    value = Config.resolve({}, changes).flat()[name]
    assert value == expected
    assert type(value) is type(expected)


def test_a_home_directory_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert Data(data_dir="~/data").data_dir == "/home/someone/data"


@pytest.mark.parametrize("name", ["strategi", "shufle_buffer", "stagse"])
def test_an_unknown_name_is_answered_with_the_nearest(name):
    with pytest.raises(ConfigError, match=r"Did you mean '(strategy|shuffle_buffer|stages)'"):
        Config.resolve({name: 1})


def test_a_flat_name_given_to_the_constructor_says_where_it_belongs():
    with pytest.raises(ConfigError, match=r"Config\(data=Data\(shuffle_buffer=\.\.\.\)\)"):
        Config(shuffle_buffer=3)


def test_groups_may_be_mappings():
    assert Config(data={"shuffle": False}).data == Data(shuffle=False)
    with pytest.raises(ConfigError, match="belongs in `pipeline`"):
        Config(data={"stages": 2})


def test_replace_takes_flat_names_mappings_and_groups():
    config = Config(data=Data(cache=False, shuffle=False))
    assert config.replace(shuffle_buffer=10).data == Data(
        cache=False, shuffle=False, shuffle_buffer=10
    )
    assert config.replace(data={"shuffle_buffer": 10}).data.cache is False
    assert config.replace(data=Data(shuffle_buffer=10)).data == Data(shuffle_buffer=10)
    assert config.replace(strategy="single", stages=2).pipeline.stages == 2
    assert config.data.shuffle_buffer == 10_000


def test_a_new_batch_size_displaces_the_other_kind():
    config = Config(global_batch_size=64).replace(per_replica_batch_size=8)
    assert (config.global_batch_size, config.per_replica_batch_size) == (None, 8)
    config = Config.resolve(
        config, {"global_batch_size": 16}, environ={"TFDIST_PER_REPLICA_BATCH_SIZE": "4"}
    )
    assert (config.global_batch_size, config.per_replica_batch_size) == (16, None)


def test_two_batch_sizes_in_one_place_are_refused():
    with pytest.raises(ConfigError, match="exclude each other"):
        Config(global_batch_size=64, per_replica_batch_size=8)
    with pytest.raises(ConfigError, match="exclude each other"):
        Config.resolve({}, {"global_batch_size": 64, "per_replica_batch_size": 8})


def test_determinism_needs_a_seed():
    with pytest.raises(ConfigError, match=r"from Config\(deterministic=\.\.\.\)"):
        Config(deterministic=True)
    with pytest.raises(ConfigError, match="from environment TFDIST_DETERMINISTIC"):
        Config.resolve(None, {}, {"TFDIST_DETERMINISTIC": "1"})
    assert Config.resolve({"seed": 0}, {}, {"TFDIST_DETERMINISTIC": "1"}).deterministic


def test_a_name_twice_flat_and_in_its_group_is_refused():
    with pytest.raises(ConfigError, match="given twice"):
        Config.resolve({"shuffle": True, "data": {"shuffle": False}})


def test_precedence_and_origins(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("seed: 2\nprecision: bfloat16\nshuffle_buffer: 5\npipeline: {stages: 3}\n")
    environ = {
        "TFDIST_SEED": "1",
        "TFDIST_CACHE": "no",
        "TFDIST_PRECISION": "float16",
        "TFDIST_VERBOSE": "",
    }
    config = Config.resolve(path, {"precision": "float64"}, environ)
    assert (config.seed, config.data.cache, config.precision) == (2, False, "float64")
    assert (config.data.shuffle_buffer, config.pipeline.stages) == (5, 3)
    origins = {name: config.origin(name) for name in ("seed", "cache", "precision", "verbose")}
    assert origins == {
        "seed": str(path),
        "cache": "environment TFDIST_CACHE",
        "precision": "create(precision=...)",
        "verbose": "default",
    }


def test_code_goes_before_the_environment_even_with_a_default_value():
    environ = {"TFDIST_PRECISION": "bfloat16", "TFDIST_SHUFFLE": "false"}
    config = Config.resolve(Config(precision="float32", data=Data(shuffle=True)), {}, environ)
    assert (config.precision, config.data.shuffle) == ("float32", True)
    assert Config.resolve(Config(), {}, environ).precision == "bfloat16"


def test_resolving_twice_changes_nothing():
    first = Config.resolve({"seed": 1}, {"cache": False}, {"TFDIST_STAGES": "2"})
    second = Config.resolve(first, {}, {"TFDIST_STAGES": "2"})
    assert second == first
    assert second.explain() == first.explain()


def test_explain_is_a_table_of_all_fields():
    lines = Config.resolve(None, {"seed": 7}, {"TFDIST_SHUFFLE": "0"}).explain().splitlines()
    assert lines[0].split() == ["field", "value", "origin"]
    assert len(lines) == 2 + len(slots(Config))
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[2:]}
    assert rows["seed"] == ["7", "create(seed=...)"]
    assert rows["data.shuffle"] == ["False", "environment TFDIST_SHUFFLE"]
    assert rows["strategy"] == ["auto", "default"]


def test_a_likely_slip_in_the_environment_is_mentioned(caplog):
    environ = {"TFDIST_PRECISON": "bfloat16", "TFDIST_RANK": "0", "TFDIST_UNRELATED": "x"}
    assert Config.resolve(None, {}, environ) == Config()
    assert [record.getMessage() for record in caplog.records] == [
        "TFDIST_PRECISON is not a tfdist setting and is ignored; did you mean TFDIST_PRECISION?"
    ]


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".conf"])
def test_a_file_of_to_dict_reads_back(tmp_path, suffix):
    config = Config(
        strategy="mirrored", seed=3, recovery=Recovery(backup_freq=10), data=Data(data_dir="d")
    )
    path = tmp_path / f"job{suffix}"
    path.write_text(json.dumps(config.to_dict()))
    assert Config.load(path) == config
    assert Config.load(path).origin("seed") == str(path)


def test_an_empty_yaml_file_sets_nothing(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("# nothing yet\n")
    assert Config.load(path) == Config()


def test_yaml_numbers_that_yaml_takes_for_text(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("start_timeout: 1e2\nshuffle: off\nschedule: 1f1b\n")
    config = Config.load(path)
    assert (config.start_timeout, config.data.shuffle) == (100.0, False)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.yaml", "strategy: mirrored\n  seed: 1\n", r"not valid YAML.*line 2"),
        ("a.json", '{"seed": 1,\n "cache": }', r"not valid JSON.*line 2"),
        ("a.yaml", "seed: 1\nseed: 2\n", r"given twice.*'seed' \(line 2\)"),
        ("a.json", '{"seed": 1, "seed": 2}', r"given twice.*'seed'"),
        ("a.yaml", "- seed\n", "must hold a mapping.*list"),
        ("a.yaml", "sede: 1\n", "Unknown setting `sede`.*Did you mean 'seed'"),
        ("a.yaml", "data: {shufle: true}\n", "Unknown setting `shufle` in `data`.*'shuffle'"),
        ("a.yaml", "data: 5\n", "`data` must be a mapping or a Data"),
        ("a.yaml", "global_batch_size: many\n", "`global_batch_size` must be an integer >= 1"),
        ("a.yaml", "shuffle: 3\n", "`shuffle` must be true or false"),
        ("a.yaml", "1: 2\n", "names of settings must be strings"),
        ("a.yaml", b"\xff\xfe\x00", "can't be read"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, name, content, match):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=match) as caught:
        Config.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist.*nope\.yaml"):
        Config.load(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match="can't be read"):
        Config.load(tmp_path)


def test_a_path_with_braces_is_only_a_path(tmp_path):
    path = tmp_path / "{job}.yaml"
    path.write_text("seed: 1\n")
    assert Config.load(path).origin("seed") == str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", DeviceSpec("auto")),
        ("cpu", DeviceSpec("cpu")),
        ("cpu:4", DeviceSpec("cpu", cpus=4)),
        ("gpu", DeviceSpec("gpu")),
        ("gpu:1,0", DeviceSpec("gpu", gpus=(1, 0))),
    ],
)
def test_device_specs_round_trip(text, expected):
    assert DeviceSpec.parse(text) == expected
    assert str(expected) == text


def test_the_pure_modules_do_not_import_tensorflow():
    code = (
        "import sys, tfdist.config, tfdist.flags, tfdist.cluster, tfdist.preflight, tfdist.factory;"
        "heavy = {'tensorflow', 'keras', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
