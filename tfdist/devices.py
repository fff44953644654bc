"""Chooses the devices of this process, once, before TensorFlow initialises them."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdist import cores
from tfdist.cluster import resolvers
from tfdist.cluster.check import split_address
from tfdist.config.device_spec import DeviceSpec
from tfdist.config.sizes import format_bytes
from tfdist.errors import ConfigError, explain

if TYPE_CHECKING:
    from tfdist.cluster import Cluster
    from tfdist.config import Config

__all__ = [
    "Devices",
    "Plan",
    "configure",
    "local_rank_from",
    "plan",
    "plan_of",
    "share_cores",
    "workers_on_this_host",
]

logger = logging.getLogger(__name__)

_configured: Plan | None = None


@dataclass(frozen=True)
class Devices:
    """What a process trains on: "CPU" or "GPU", and how many of them."""

    kind: str
    count: int


@dataclass(frozen=True)
class Plan:
    """The devices that a process uses.

    Attributes:
        kind: "CPU" or "GPU".
        gpus: indices of the GPUs that stay visible; None leaves them as they are.
        cpus: logical CPU devices to make; None leaves TensorFlow's own.
        gpu_memory: bytes that the process may take of each GPU; None lets its memory grow.
    """

    kind: str
    gpus: tuple[int, ...] | None = None
    cpus: int | None = None
    gpu_memory: int | None = None

    def __str__(self) -> str:
        """The plan as the `devices` setting would say it."""
        if self.kind == "CPU":
            return "cpu" if self.cpus is None else f"cpu:{self.cpus}"
        limit = f" with {format_bytes(self.gpu_memory)} each" if self.gpu_memory else ""
        return ("gpu" if self.gpus is None else "gpu:" + ",".join(map(str, self.gpus))) + limit


def configure(
    config: Config,
    cluster: Cluster,
    local_rank: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Devices:
    """Makes the process use the devices that the Config asks for; the same again does nothing.

    GPUs get memory growth, so that several processes can share one, unless `gpu_memory_limit` or the
    script has given them a memory limit (TensorFlow allows one of the two). Workers that share a
    host share out its cores, see `tfdist.cores`.

    Args:
        config: its `devices` setting, see `tfdist.config.device_spec`.
        cluster: workers that share a host share out its GPUs.
        local_rank: this worker's number on its host; None leaves all GPUs to it.
        environ: the environment; None means `os.environ`.

    Returns:
        The devices: GPUs, or logical CPUs where there is no GPU in use.

    Raises:
        ConfigError: a device doesn't exist, or TensorFlow or an earlier call has already settled on
            other devices.
    """
    global _configured
    source = config.origin("devices")
    wanted = plan_of(config, cluster, local_rank, environ)
    if _configured is not None and _configured != wanted:
        raise _restart(f"they were set to {_configured} by an earlier call", wanted, source)
    if _configured is None:
        share_cores(cluster, local_rank, os.environ if environ is None else environ)
    count = _apply(wanted, source)
    _configured = wanted
    return Devices(wanted.kind, count)


def share_cores(cluster: Cluster, local_rank: int | None, environ: Mapping[str, str]) -> None:
    """Gives this worker its part of the host's cores; see `tfdist.cores`."""
    cores.apply(workers_on_this_host(cluster), local_rank, environ)


def plan_of(
    config: Config,
    cluster: Cluster,
    local_rank: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """Decides which devices this process uses; arguments and errors as of `configure`."""
    import tensorflow as tf

    variables = os.environ if environ is None else environ
    # Whoever set it has shared out the GPUs: the launcher, a scheduler, or the user. Only Slurm also
    # sets it to those of the whole node, for each of its tasks.
    is_shared_out = "CUDA_VISIBLE_DEVICES" in variables and not resolvers.sees_gpus_of_others(
        variables
    )
    found = plan(
        DeviceSpec.parse(config.devices),
        gpus=len(tf.config.list_physical_devices("GPU")),
        local_rank=None if is_shared_out else local_rank,
        local_workers=workers_on_this_host(cluster),
        source=config.origin("devices"),
    )
    if config.gpu_memory_limit is None:
        return found
    if found.kind == "CPU":
        logger.info("gpu_memory_limit has no effect: no GPU is in use")
        return found
    return dataclasses.replace(found, gpu_memory=config.gpu_memory_limit)


def plan(
    spec: DeviceSpec,
    *,
    gpus: int,
    local_rank: int | None = None,
    local_workers: int = 1,
    source: str | None = None,
) -> Plan:
    """Decides which devices a process uses. Pure: TensorFlow isn't asked.

    Args:
        spec: what is asked for.
        gpus: how many GPUs the process sees.
        local_rank: this worker's number on its host; None gives it all GPUs.
        local_workers: workers on this host.
        source: where `spec` came from, for messages.

    Returns:
        The plan.

    Raises:
        ConfigError: a GPU that is asked for doesn't exist.
    """
    if spec.kind == "cpu" or (spec.kind == "auto" and gpus == 0):
        return Plan("CPU", gpus=() if gpus else None, cpus=spec.cpus)
    existing = [f"gpu:{index}" for index in range(gpus)]
    missing = [f"gpu:{index}" for index in spec.gpus or () if index >= gpus]
    if gpus == 0 or missing:
        named = f"Devices that don't exist here: {', '.join(missing)}" if missing else "No GPU here"
        raise ConfigError(
            explain(
                named,
                received=f"devices={spec}",
                source=source,
                fix=f"This process sees: {', '.join([*existing, 'cpu'])}. Use some of them; check "
                "CUDA_VISIBLE_DEVICES and the driver if a GPU is missing",
            )
        )
    if spec.gpus is not None:
        return Plan("GPU", gpus=spec.gpus)
    if local_rank is None or local_workers == 1:
        return Plan("GPU")
    return Plan("GPU", gpus=_share(gpus, local_rank, local_workers))


def _share(gpus: int, local_rank: int, local_workers: int) -> tuple[int, ...]:
    """A worker's equal share of the host's GPUs, or one that it shares where there are too few."""
    each = gpus // local_workers
    if each == 0:
        logger.warning("%d workers of this host share %d GPUs", local_workers, gpus)
        return (local_rank % gpus,)
    return tuple(range(local_rank * each, (local_rank + 1) * each))


def workers_on_this_host(cluster: Cluster) -> int:
    """How many of the cluster's workers have this process's host in their address; at least 1."""
    if cluster.address is None:
        return 1
    computing = ("worker",) if cluster.num_ps else ("chief", "worker")
    host = split_address(cluster.address)[0].lower()
    here = sum(
        split_address(task.address)[0].lower() == host
        for task in cluster.tasks()
        if task.type in computing
    )
    return max(here, 1)


def local_rank_from(environ: Mapping[str, str]) -> int | None:
    """Reads TFDIST_LOCAL_RANK, or what Slurm or MPI say instead; None when nothing does.

    Raises:
        ConfigError: it is not a number from 0 on.
    """
    text = environ.get("TFDIST_LOCAL_RANK", "").strip()
    if not text:
        return resolvers.local_rank(environ)
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(
            explain(
                "The local rank must be a number, counted from 0",
                received=repr(text),
                source="environment TFDIST_LOCAL_RANK",
                fix="Leave it to `tfdist run`, or unset it",
            )
        )
    return int(text)


def _apply(wanted: Plan, source: str) -> int:
    """Sets the devices in TensorFlow and returns how many there are."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    present = tf.config.list_physical_devices("GPU")
    if wanted.gpus is not None:
        chosen = [present[index] for index in wanted.gpus]
        if tf.config.get_visible_devices("GPU") != chosen:
            try:
                tf.config.set_visible_devices(chosen, "GPU")
            except RuntimeError:
                visible = ", ".join(item.name for item in tf.config.get_visible_devices("GPU"))
                raise _initialized(f"visible GPUs: {visible}", wanted, source) from None
    if wanted.cpus is not None and _logical_cpus(cpu) != wanted.cpus:
        try:
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(wanted.cpus)]
            )
        except RuntimeError:
            problem = f"logical CPU devices: {_logical_cpus(cpu) or 1}"
            raise _initialized(problem, wanted, source) from None
    if wanted.kind == "CPU":
        return _logical_cpus(cpu) or 1
    used = tf.config.get_visible_devices("GPU")
    for gpu in used:
        if wanted.gpu_memory is None:
            _grow(gpu)
        else:
            _limit(gpu, wanted, source)
    return len(used)


def _logical_cpus(cpu: Any) -> int | None:
    """How many logical devices the CPU is divided into; None when nobody has divided it."""
    import tensorflow as tf

    configurations = tf.config.get_logical_device_configuration(cpu)
    return None if configurations is None else len(configurations)


def _limit(gpu: Any, wanted: Plan, source: str) -> None:
    """Makes the GPU one logical device of limited memory."""
    import tensorflow as tf

    megabytes = max(1, (wanted.gpu_memory or 0) // 2**20)
    present = tf.config.get_logical_device_configuration(gpu) or []
    if [item.memory_limit for item in present] == [megabytes]:
        return
    try:
        tf.config.set_logical_device_configuration(
            gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)]
        )
    except (RuntimeError, ValueError) as error:  # It has started; or memory growth is on already.
        raise _initialized(f"{gpu.name}: {error}", wanted, source) from None


def _grow(gpu: Any) -> None:
    """Turns memory growth on where it is possible."""
    import tensorflow as tf

    try:
        if not tf.config.experimental.get_memory_growth(gpu):
            tf.config.experimental.set_memory_growth(gpu, True)
    except ValueError:  # It is divided into logical devices with a memory limit.
        logger.info("%s keeps the memory limit that was set for it", gpu.name)
    except RuntimeError:
        logger.warning(
            "TensorFlow has already taken the memory of %s, so it can't grow on demand; call "
            "tfdist.create() before any other use of TensorFlow",
            gpu.name,
        )


def _initialized(present: str, wanted: Plan, source: str) -> ConfigError:
    return _restart(
        "TensorFlow has already initialised its devices, by an earlier call that made a tensor, "
        f"a variable or a model, or listed logical devices ({present})",
        wanted,
        source,
    )


def _restart(why: str, wanted: Plan, source: str) -> ConfigError:
    return ConfigError(
        explain(
            f"The devices can't be changed any more: {why}",
            received=f"devices={wanted}",
            source=source,
            fix="Restart the process, and call tfdist.create() first thing in it",
        )
    )
