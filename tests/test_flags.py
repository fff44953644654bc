"""Every Config field as an absl flag."""

from __future__ import annotations

import subprocess
import sys

import pytest
from absl import flags as absl_flags
from support.processes import child_environment

from tfdist import flags
from tfdist.config import Config
from tfdist.config.layers import slots
from tfdist.errors import ConfigError

SCRIPT = '''"""A script."""
from absl import app
import tfdist

tfdist.flags.define()

def main(_):
    print(tfdist.flags.config_from_flags().explain())

app.run(main)
'''


def parse(*arguments: str) -> absl_flags.FlagValues:
    values = absl_flags.FlagValues()
    flags.define(values)
    values(["script", *arguments])
    return values


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in slots(Config):
        monkeypatch.delenv(f"TFDIST_{name.upper()}", raising=False)


def test_there_is_a_flag_for_every_field_with_its_help():
    values = parse()
    for name, slot in slots(Config).items():
        assert slot.help in values[name].help
        assert values[name].value is None


def test_nothing_given_is_the_default_config():
    config = flags.config_from_flags(parse())
    assert config == Config()
    assert config.origin("seed") == "default"


def test_flags_of_every_type():
    config = flags.config_from_flags(
        parse(
            "--strategy=mirrored",
            "--noshuffle",
            "--deterministic",
            "--seed=3",
            "--prefetch=-1",
            "--start_timeout=2.5",
            "--backup_freq=10",
            "--verbose=2",
            "--data_dir=/data",
            "--collective_timeout=none",
            "--devices=cpu:2",
            "--log_dir=logs",
        )
    )
    assert (config.strategy, config.data.shuffle, config.deterministic) == ("mirrored", False, True)
    assert (config.seed, config.data.prefetch, config.start_timeout) == (3, -1, 2.5)
    assert (config.recovery.backup_freq, config.verbose) == (10, 2)
    assert (config.data.data_dir, config.communication.collective_timeout) == ("/data", None)
    assert (config.devices, config.recovery.log_dir) == ("cpu:2", "logs")
    assert config.origin("seed") == "--seed"


def test_flags_go_before_the_file_and_the_file_before_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "job.yaml"
    path.write_text("seed: 2\nstages: 2\n")
    monkeypatch.setenv("TFDIST_SEED", "1")
    monkeypatch.setenv("TFDIST_STAGES", "1")
    monkeypatch.setenv("TFDIST_CACHE", "0")
    config = flags.config_from_flags(parse(f"--config={path}", "--seed=3"))
    assert (config.seed, config.pipeline.stages, config.data.cache) == (3, 2, False)
    assert [config.origin(name) for name in ("seed", "stages", "cache")] == [
        "--seed",
        str(path),
        "environment TFDIST_CACHE",
    ]
    assert Config.resolve(config, {"seed": 4}).seed == 4


def test_a_batch_size_flag_displaces_the_files_other_kind(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("global_batch_size: 64\n")
    config = flags.config_from_flags(parse(f"--config={path}", "--per_replica_batch_size=4"))
    assert (config.global_batch_size, config.per_replica_batch_size) == (None, 4)


def test_define_twice_is_fine():
    values = absl_flags.FlagValues()
    flags.define(values)
    flags.define(values)


@pytest.mark.parametrize("argument", ["--strategy=mirored", "--shard=rows", "--stratgy=single"])
def test_absl_refuses_unknown_names_and_choices(argument):
    with pytest.raises(absl_flags.Error):
        parse(argument)


def test_wrong_values_name_the_flag():
    with pytest.raises(ConfigError, match=r"`seed` must be an integer.*from --seed"):
        flags.config_from_flags(parse("--seed=one"))


def test_before_parsing_the_error_says_what_to_call():
    values = absl_flags.FlagValues()
    with pytest.raises(ConfigError, match="not defined and parsed"):
        flags.config_from_flags(values)
    flags.define(values)
    with pytest.raises(ConfigError, match="not defined and parsed"):
        flags.config_from_flags(values)


def test_in_a_script_with_absls_own_flags(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, path, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=child_environment(),
        )

    given = run("--log_dir=runs", "--nocache")
    assert given.returncode == 0, given.stderr
    assert "--log_dir" in given.stdout.splitlines()[-1]
    untouched = run()
    assert untouched.stdout.splitlines()[-1].split() == ["recovery.log_dir", "None", "default"]
    assert "--shuffle_buffer" in run("--help").stdout
