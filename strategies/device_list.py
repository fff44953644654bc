"""Logical device names, checked against the devices that exist."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.errors import ConfigError, explain

__all__ = ["default_devices", "resolve"]


def default_devices() -> list[str]:
    """Returns the devices a strategy uses by default: all GPUs, else all logical CPUs."""
    gpus = tf.config.list_logical_devices("GPU")
    return [_short(device.name) for device in gpus or tf.config.list_logical_devices("CPU")]


def resolve(devices: Sequence[str]) -> list[str]:
    """Checks that each device exists and is named once.

    `tf.distribute.MirroredStrategy(["CPU:0", "CPU:5"])` accepts a missing device and hangs in the
    first step (tensorflow issue 31410).

    Args:
        devices: names such as "CPU:1", "/gpu:0" or full device strings.

    Returns:
        The names as "TYPE:index".

    Raises:
        ConfigError: if a device is missing or repeated, or the list is empty.
    """
    existing = [_short(device.name) for device in tf.config.list_logical_devices()]
    listing = ", ".join(existing)
    if not devices:
        raise ConfigError(
            explain(
                "A strategy needs at least one device",
                received="devices=[]",
                fix=f"Name some of: {listing}",
            )
        )
    result = [_short(str(device)) for device in devices]
    missing = [name for name in result if name not in existing]
    if missing:
        raise ConfigError(
            explain(
                f"Device {missing[0]} does not exist in this process",
                received=f"devices={list(devices)}",
                source="the strategy's `devices`",
                fix=f"Use some of: {listing}; `tfdist.create(devices='cpu:4')` makes 4 logical CPUs",
            )
        )
    repeated = sorted({name for name in result if result.count(name) > 1})
    if repeated:
        raise ConfigError(
            explain(
                f"Device {repeated[0]} is named twice; each replica needs its own device",
                received=f"devices={list(devices)}",
                fix=f"Name each of these once: {listing}",
            )
        )
    return result


def _short(name: str) -> str:
    """Returns "CPU:0" for "/device:CPU:0", "/job:x/.../device:CPU:0", "cpu:0" or "/cpu:0"."""
    last = name.split("/")[-1]
    parts = [part for part in last.split(":") if part and part.lower() != "device"]
    if len(parts) != 2 or not parts[1].isdigit():
        return name
    return f"{parts[0].upper()}:{int(parts[1])}"
