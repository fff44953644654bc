"""The columns of the matrix, and how a test process runs a cell of one.

The reference and the columns of one process share nothing: the reference's process never imports tfdist.
"""

from __future__ import annotations

import gc
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.context import Context
from parity.lazy import keras, tf
from parity.registry import load_rows

__all__ = ["COLUMNS", "SERVERS", "Column", "Server"]


@dataclass(frozen=True)
class Server:
    """A group of processes that runs the cells of one or more columns."""

    setup: str
    processes: int = 1


@dataclass(frozen=True)
class Column:
    """One strategy of the matrix."""

    title: str
    server: str
    shown: bool = True
    """Whether it is in the table; the others prove that the matrix can fail."""
    brief: bool = False
    """Whether `make test` runs only its odd rows, because its cells take long; `make parity` runs all."""


SERVERS = {
    "reference": Server("parity.columns:start_reference"),
    "local": Server("parity.columns:start_local"),
    "group": Server("parity.columns:start_group", processes=2),
    "ps": Server("parity.columns:start_ps"),
    "ps_synchronous": Server("parity.columns:start_ps_synchronous"),
    "stock": Server("parity.columns:start_stock"),
}

COLUMNS = {
    "reference": Column("one device, stock Keras", "reference", shown=False),
    "single": Column("single", "local"),
    "mirrored": Column("mirrored (2)", "local"),
    "mirrored_3": Column("mirrored (3)", "local"),
    "multi_worker": Column("multi_worker (2)", "group"),
    "parameter_server": Column("parameter_server (1 worker)", "ps", brief=True),
    "parameter_server_sync": Column(
        "parameter_server (synchronous, 2)", "ps_synchronous", brief=True
    ),
    "stock_mirrored": Column("stock MirroredStrategy (2)", "stock", shown=False),
}


@dataclass
class Lab:
    """What a test process holds: its columns' strategies and its rank."""

    strategies: dict[str, Any]
    rank: int = 0
    rows: dict[str, Any] = field(default_factory=load_rows)


def _logical_devices(n: int) -> list[str]:
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * n)
    return [f"CPU:{i}" for i in range(n)]


def start_reference() -> Lab:
    """Sets up stock Keras on one device."""
    return Lab({"reference": None})


def start_stock() -> Lab:
    """Sets up TensorFlow's own MirroredStrategy, without tfdist."""
    return Lab({"stock_mirrored": tf.distribute.MirroredStrategy(_logical_devices(2))})


def start_local() -> Lab:
    """Sets up tfdist's strategies of one process, on three logical devices."""
    devices = _logical_devices(3)
    from tfdist.strategies import MirroredStrategy, SingleDeviceStrategy

    return Lab(
        {
            "single": SingleDeviceStrategy(),
            "mirrored": MirroredStrategy(devices[:2]),
            "mirrored_3": MirroredStrategy(devices),
        }
    )


def start_group() -> Lab:
    """Sets up tfdist's strategy of several processes, from TF_CONFIG."""
    from tfdist.strategies import MultiWorkerMirroredStrategy

    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    return Lab({"multi_worker": MultiWorkerMirroredStrategy()}, rank)


def start_ps() -> Lab:
    """Sets up an asynchronous coordinator of one worker, which is therefore sequential."""
    return _coordinator("parameter_server", workers=1)


def start_ps_synchronous() -> Lab:
    """Sets up a coordinator of two workers that do each step together."""
    return _coordinator("parameter_server_sync", workers=2, synchronous=True)


def _coordinator(column: str, workers: int, **options: Any) -> Lab:
    from support.ps_cluster import PsCluster

    cluster = PsCluster(workers, ps=1)  # ends with this process
    os.environ["TF_CONFIG"] = cluster.tf_config()
    from tfdist.strategies import ParameterServerStrategy

    return Lab({column: ParameterServerStrategy(**options), "cluster": cluster})


def reset() -> None:
    """Makes the process as good as new for the next row."""
    keras.utils.clear_session()
    keras.mixed_precision.set_dtype_policy("float32")
    tf.config.run_functions_eagerly(False)
    keras.utils.set_random_seed(7)
    gc.collect()
    gc.freeze()  # what the host libraries hold is never scanned again: half of a cell's time


def public_classes(_: Lab) -> dict[str, set[str]]:
    """Returns the classes that a user can pass to `compile` and `fit`, by Keras module."""
    modules = ("optimizers", "callbacks", "losses", "metrics")
    return {
        module: {
            name
            for name in dir(getattr(keras, module))
            if isinstance(getattr(getattr(keras, module), name), type)
        }
        for module in modules
    }


def run_row(lab: Lab, row: str, column: str, folder: str, shared: str) -> dict[str, Any]:
    """Runs one cell and returns what its row returned."""
    reset()
    context = Context(column, lab.strategies[column], Path(folder), Path(shared), lab.rank)
    return dict(lab.rows[row].run(context))
