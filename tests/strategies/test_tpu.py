"""What a TPU strategy says where there is no TPU, which is here; and what its settings refuse."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist import combinations
from tfdist.cluster import Cluster
from tfdist.config import Config
from tfdist.errors import ClusterError, ConfigError
from tfdist.strategies import tpu


@pytest.mark.parametrize("name", ["", "local"])
def test_no_tpu_is_told_at_once(name: str) -> None:
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=r"No TPU was found: .*no TPU chips.*no libtpu.*TPU VM"):
        tpu.find({"TPU_NAME": name})
    assert time.monotonic() - begin < 5


def test_the_strategy_itself_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_NAME", raising=False)
    with pytest.raises(ConfigError, match="No TPU was found"):
        tpu.TPUStrategy()


def test_an_address_where_nothing_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        name = f"grpc://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"nothing listens there.*{name}"):
            tpu.find({"TPU_NAME": name})
    with pytest.raises(ConfigError, match="not HOST:PORT"):
        tpu.find({"TPU_NAME": "grpc://nowhere"})


def test_an_address_that_listens_is_given_to_tensorflow() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        resolver = tpu.find({"TPU_NAME": f"grpc://127.0.0.1:{server.getsockname()[1]}"})
        assert isinstance(resolver, tf.distribute.cluster_resolver.TPUClusterResolver)


def test_a_machine_that_looks_like_a_tpu_vm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(tpu, "_CHIPS", (str(tmp_path / "accel[0-9]*"),))
    with pytest.raises(ConfigError, match=r"has no libtpu") as caught:
        tpu.find({})
    assert "chips" not in str(caught.value)
    resolver = tpu.find({"TPU_LIBRARY_PATH": sys.executable})
    with pytest.raises(ConfigError, match=r"No TPU was found: .*(Op|TPU)"):
        tpu.start(resolver, 60)


def test_what_takes_too_long_is_given_up() -> None:
    released = tpu.threading.Event()
    with pytest.raises(ClusterError, match=r"no answer within 0 s.*my-tpu"):
        tpu._in_time(lambda: released.wait(30), 0.1, "my-tpu")
    released.set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "mixed_float16"}, "bfloat16"),
        ({"devices": "gpu:0"}, "does not name"),
    ],
)
def test_settings_that_do_not_go_with_a_tpu(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        combinations.check(Config(strategy="tpu", **settings), Cluster.local())
    combinations.check(Config(strategy="tpu", precision="mixed_bfloat16"), Cluster.local())


def test_several_tasks() -> None:
    cluster = Cluster({"worker": ("a:1", "b:1")}, "worker", 0)
    with pytest.raises(ConfigError, match="One process drives"):
        combinations.check(Config(strategy="tpu"), cluster)


def test_the_constructor_is_tensorflows() -> None:
    import inspect

    theirs = list(inspect.signature(tf.distribute.TPUStrategy.__init__).parameters)
    ours = list(inspect.signature(tpu.TPUStrategy.__init__).parameters)
    assert ours[: len(theirs)] == theirs
