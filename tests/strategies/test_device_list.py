"""Device names are checked against the devices that exist (P62), and NCCL against GPUs (P76)."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tfdist.errors import ConfigError
from tfdist.strategies import device_list


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets a process have these logical devices."""

    def have(*names: str) -> None:
        existing = [SimpleNamespace(name=f"/device:{name}") for name in names]
        monkeypatch.setattr(
            tf.config,
            "list_logical_devices",
            lambda kind="": [d for d in existing if kind in d.name],
        )

    return have


@pytest.mark.parametrize(
    "name",
    ["CPU:1", "cpu:1", "/cpu:1", "/device:CPU:1", "/job:localhost/replica:0/task:0/device:CPU:1"],
)
def test_every_spelling_of_a_device(devices: Any, name: str) -> None:
    devices("CPU:0", "CPU:1")
    assert device_list.resolve([name]) == ["CPU:1"]


def test_the_order_is_the_callers(devices: Any) -> None:
    devices("CPU:0", "GPU:0", "GPU:1")
    assert device_list.resolve(["gpu:1", "GPU:0"]) == ["GPU:1", "GPU:0"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["CPU:0", "CPU:5"], "Device CPU:5 does not exist.*Use some of: CPU:0, CPU:1"),
        (["CPU:0", "GPU:0"], "Device GPU:0 does not exist"),
        (["CPU:0", "/cpu:0"], "Device CPU:0 is named twice.*Name each of these once: CPU:0, CPU:1"),
        ([], "at least one device.*Name some of: CPU:0, CPU:1"),
        (["nonsense"], "Device nonsense does not exist"),
        (["CPU"], "Device CPU does not exist"),
        (["CPU:x"], "Device CPU:x does not exist"),
    ],
)
def test_wrong_devices_are_named(devices: Any, names: list[str], message: str) -> None:
    devices("CPU:0", "CPU:1")
    with pytest.raises(ConfigError, match=message) as caught:
        device_list.resolve(names)
    assert re.search(rf"devices=.*{re.escape(names[-1]) if names else ''}", str(caught.value))


def test_gpus_come_first(devices: Any) -> None:
    devices("CPU:0", "CPU:1", "GPU:0", "GPU:1")
    assert device_list.default_devices() == ["GPU:0", "GPU:1"]
    devices("CPU:0", "CPU:1")
    assert device_list.default_devices() == ["CPU:0", "CPU:1"]
