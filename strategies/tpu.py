"""The cores of a TPU slice, driven from one process.

No TPU was at hand when this was written: what runs without one is tested (how a TPU is looked for,
what is said when there is none, the shapes that the data gets), the training on one is not.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist import keras_bridge, preflight
from tfdist.cluster import Cluster
from tfdist.errors import ClusterError, ConfigError, explain
from tfdist.strategies.marker import Marker

__all__ = ["TPUStrategy", "find", "start"]

_LOCAL = ("local", "")
_LIBRARIES = ("/lib/libtpu.so", "/usr/lib/libtpu.so", "/usr/local/lib/libtpu.so")
_CHIPS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")


class TPUStrategy(tf.distribute.TPUStrategy):
    """`tf.distribute.TPUStrategy` under which Keras 3 `fit` trains, and which finds its TPU.

    Every step has the same shapes: XLA compiles them once. Training data of `Runtime.dataset` loses
    the rows of a last batch that is not full, other data is filled up with rows of weight 0.
    """

    def __init__(
        self,
        tpu_cluster_resolver: tf.distribute.cluster_resolver.TPUClusterResolver | None = None,
        experimental_device_assignment: Any = None,
        experimental_spmd_xla_partitioning: bool = False,
        *,
        start_timeout: float = 300.0,
    ) -> None:
        """Connects to the TPU, starts it, and creates the strategy.

        Args:
            tpu_cluster_resolver: a resolver; its TPU is taken to be started already, as with
                tf.distribute's own. None finds one (see `find`) and starts it.
            experimental_device_assignment: see tf.distribute.
            experimental_spmd_xla_partitioning: see tf.distribute.
            start_timeout: seconds for the TPU to answer.

        Raises:
            ConfigError: there is no TPU.
            ClusterError: the TPU doesn't answer.
        """
        resolver = tpu_cluster_resolver
        if resolver is None:
            resolver = find(os.environ, start_timeout)
            start(resolver, start_timeout)
        super().__init__(
            resolver, experimental_device_assignment, experimental_spmd_xla_partitioning
        )
        self.tfdist = Marker(Cluster.local("one process drives the TPU"))
        self.tfdist.fixed_shapes = True
        self.tfdist.compiles = True
        keras_bridge.install()


def find(
    environ: Mapping[str, str], timeout: float = 60.0
) -> tf.distribute.cluster_resolver.TPUClusterResolver:
    """Finds the TPU: that of TPU_NAME, else the one that is part of this machine.

    Args:
        environ: the environment. TPU_NAME is "local", "grpc://HOST:PORT", or the name of a TPU in
            Google Cloud.
        timeout: seconds for it to answer.

    Returns:
        TensorFlow's resolver for it.

    Raises:
        ConfigError: there is none; the message says what was tried.
        ClusterError: the one that is named doesn't answer.
    """
    name = environ.get("TPU_NAME", "").strip()
    if name in _LOCAL:
        missing = _what_a_tpu_vm_has(environ)
        if missing:
            raise _no_tpu(f"this machine has no {' and no '.join(missing)}", name)
        return tf.distribute.cluster_resolver.TPUClusterResolver("local")
    if "://" in name:
        address = name.rpartition("://")[2]
        try:
            answers = preflight.listens(address, min(timeout, 10.0))
        except ValueError as error:
            raise _no_tpu(f"the address {error}", name) from None
        if not answers:
            raise _silent(name, "nothing listens there")
        return tf.distribute.cluster_resolver.TPUClusterResolver(name)
    return _in_time(lambda: _in_cloud(name), timeout, name)


def start(resolver: tf.distribute.cluster_resolver.TPUClusterResolver, timeout: float) -> None:
    """Connects to the TPU and starts its system.

    Args:
        resolver: the TPU.
        timeout: seconds.

    Raises:
        ConfigError: the machine has no TPU, whatever its files say.
        ClusterError: the TPU doesn't answer, or another process has it.
    """
    name = str(getattr(resolver, "_tpu", "") or "local")

    def connect() -> None:
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)

    try:
        _in_time(connect, timeout, name)
    except tf.errors.NotFoundError as error:
        raise _no_tpu(_first_line(error), name) from error
    except tf.errors.OpError as error:
        raise _silent(name, _first_line(error)) from error


def _what_a_tpu_vm_has(environ: Mapping[str, str]) -> list[str]:
    """What this machine lacks of a TPU VM."""
    missing = []
    if not any(glob.glob(pattern) for pattern in _CHIPS):
        missing.append("TPU chips (/dev/accel0, /dev/vfio/0)")
    places = (environ.get("TPU_LIBRARY_PATH", ""), *_LIBRARIES)
    if importlib.util.find_spec("libtpu") is None and not any(map(os.path.exists, places)):
        missing.append("libtpu (pip install tensorflow-tpu)")
    return missing


def _in_cloud(name: str) -> Any:
    """The resolver of a TPU that Google Cloud knows; asks it for the addresses."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(name)
        resolver.cluster_spec()
    except Exception as error:  # It raises what the client library and the network raise.
        raise _silent(name, _first_line(error)) from error
    return resolver


def _in_time(function: Callable[[], Any], timeout: float, name: str) -> Any:
    """Calls a function of TensorFlow's that may wait without end."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def call() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, name="tfdist-tpu", daemon=True)
    thread.start()
    thread.join(timeout)
    if not outcome:
        raise _silent(name, f"no answer within {timeout:.0f} s")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "message", None) or error).strip()
    return (text.splitlines() or [type(error).__name__])[0][:300]


def _no_tpu(why: str, name: str) -> ConfigError:
    return ConfigError(
        explain(
            f"No TPU was found: {why}",
            received=f"strategy=tpu, TPU_NAME={name or 'unset'}",
            fix="Run this on a TPU VM (`tfdist manifest tpu` writes the commands), set TPU_NAME to "
            "its name or grpc://HOST:PORT, or use strategy='auto' elsewhere",
        )
    )


def _silent(name: str, why: str) -> ClusterError:
    return ClusterError(
        explain(
            f"The TPU does not answer: {why}",
            received=name,
            source="TPU_NAME",
            fix="Check that it is READY (gcloud compute tpus tpu-vm list), that TPU_NAME is right, and "
            "that no other process uses it",
        )
    )
