"""Which strategy a job gets, and the combinations of settings and cluster that can't work.

Everything here is decided before TensorFlow is imported, from the Config and the Cluster alone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tfdist.errors import ConfigError, explain
from tfdist.serving.roles import check_backup_workers
from tfdist.serving.roles import check_cluster as check_roles
from tfdist.strategies import registry

if TYPE_CHECKING:
    from tfdist.cluster import Cluster
    from tfdist.config import Config

__all__ = ["check", "check_devices", "is_server", "strategy_name"]

logger = logging.getLogger(__name__)


def check(config: Config, cluster: Cluster) -> None:
    """Refuses what can't work in this cluster.

    Args:
        config: the settings.
        cluster: the cluster of this process.

    Raises:
        ConfigError: the strategy contradicts the cluster.
        ClusterError: the cluster has not all the roles that the strategy needs.
        UnsupportedError: this version does not have the strategy, or the one the cluster needs.
    """
    registry.check_name(config.strategy, config.origin("strategy"))
    if cluster.is_evaluator:
        return
    if config.strategy == "parameter_server" or (cluster.num_ps and config.strategy == "auto"):
        _check_parameter_server(config, cluster)
    elif config.strategy == "multi_worker":
        _check_multi_worker(config, cluster)
    elif config.strategy == "tpu":
        _check_tpu(config, cluster)
    elif config.strategy in ("single", "mirrored") and len(cluster.tasks()) > 1:
        raise ConfigError(
            explain(
                f"Strategy '{config.strategy}' stays in one process: each of the "
                f"{cluster.num_workers} workers would train its own model, alone",
                received=f"strategy={config.strategy}, a cluster of {len(cluster.tasks())} tasks",
                source=f"{config.origin('strategy')}, {cluster.source}",
                fix=f"Use strategy='{'parameter_server' if cluster.num_ps else 'multi_worker'}' (or "
                "'auto'); or set TF_CONFIG='{}' to train in one process",
            )
        )


def is_server(cluster: Cluster) -> bool:
    """Whether this process only serves the chief of a cluster with parameter servers."""
    return cluster.num_ps > 0 and cluster.task_type in ("worker", "ps")


def _check_parameter_server(config: Config, cluster: Cluster) -> None:
    registry.check_name("parameter_server", cluster.source)
    if not cluster.jobs:
        raise ConfigError(
            explain(
                "Strategy 'parameter_server' needs a cluster of a chief, workers and ps, and this "
                "process is not in one",
                received=f"strategy=parameter_server, {cluster.source}",
                source=config.origin("strategy"),
                fix="Start it with `tfdist run --workers 2 --ps 1 script.py`, or set TF_CONFIG on "
                "every task before tfdist.create()",
            )
        )
    check_roles(cluster)
    settings = config.parameter_server
    check_backup_workers(cluster, settings.synchronous, settings.backup_workers)


def _check_multi_worker(config: Config, cluster: Cluster) -> None:
    if cluster.num_ps:
        raise ConfigError(
            explain(
                "Strategy 'multi_worker' has no parameter servers, the cluster has",
                received=f"{cluster.num_ps} tasks of role ps",
                source=cluster.source,
                fix="Use strategy='parameter_server' (or 'auto'), or remove the ps from the cluster",
            )
        )
    if cluster.task_type is not None:
        return
    if not config.allow_single:
        raise ConfigError(
            explain(
                "Strategy 'multi_worker' needs a cluster, and this process is not in one: it would "
                "train alone",
                received=f"strategy=multi_worker, {cluster.source}",
                source=config.origin("strategy"),
                fix="Start it with `tfdist run -n 2 script.py`, or set TF_CONFIG on every worker "
                "before tfdist.create(); or say allow_single=True to train alone",
            )
        )
    logger.warning("strategy multi_worker without a cluster: this process trains alone")


def _check_tpu(config: Config, cluster: Cluster) -> None:
    if len(cluster.tasks()) > 1:
        raise ConfigError(
            explain(
                "One process drives a TPU slice, and this one is in a cluster of several",
                received=f"strategy=tpu, {len(cluster.tasks())} tasks",
                source=f"{config.origin('strategy')}, {cluster.source}",
                fix="Start the script once, on the slice's first host, without TF_CONFIG",
            )
        )
    if config.precision in ("mixed_float16", "float16", "float64"):
        raise ConfigError(
            explain(
                "A TPU computes in bfloat16 and float32",
                received=f"precision={config.precision}",
                source=config.origin("precision"),
                fix="Use precision='mixed_bfloat16'",
            )
        )
    if config.devices not in ("auto", "cpu"):
        raise ConfigError(
            explain(
                "Strategy 'tpu' trains on the TPU's cores, which `devices` does not name",
                received=f"devices={config.devices}",
                source=config.origin("devices"),
                fix="Leave `devices` out",
            )
        )


def strategy_name(config: Config, cluster: Cluster, devices: int) -> str:
    """The strategy for this process; decides "auto".

    Args:
        config: the settings, after `check`.
        cluster: the cluster; an evaluator gets "single", whatever the others train with.
        devices: devices of this process.
    """
    if cluster.is_evaluator:
        return "single"
    if config.strategy != "auto":
        return config.strategy
    if cluster.num_ps:
        return "parameter_server"
    if cluster.is_distributed:
        return "multi_worker"
    return "mirrored" if devices > 1 else "single"


def check_devices(config: Config, name: str, kind: str) -> None:
    """Refuses NCCL without GPUs.

    Args:
        config: the settings.
        name: the strategy.
        kind: "CPU" or "GPU", of this process's devices.

    Raises:
        ConfigError: NCCL is asked for without GPUs (tensorflow issues 33656, 60847).
    """
    if config.communication.implementation == "nccl" and kind != "GPU" and name != "single":
        raise ConfigError(
            explain(
                "NCCL works between GPUs only, and this process has none in use",
                received="implementation=nccl",
                source=config.origin("implementation"),
                fix="Use implementation='auto' or 'ring'",
            )
        )
