"""`tfdist.create`: from settings to a process that is ready to train.

    settings -> cluster -> can they work together? -> devices -> precision -> seed -> strategy

The first three need no TensorFlow, so that a mistake is told at once; devices and precision come
before anything that makes TensorFlow initialise.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Mapping
from typing import Any

from tfdist import combinations, devices, precision, same_job, serving
from tfdist.batch_sizes import batch_sizes, replica_count
from tfdist.cluster import Cluster
from tfdist.config import Config
from tfdist.errors import ConfigError, explain
from tfdist.runtime import Runtime

__all__ = ["create"]

logger = logging.getLogger(__name__)

# Package: the oldest version that works, and why.
_OLDEST: Mapping[str, tuple[tuple[int, int], str]] = {
    "tensorflow": ((2, 21), "the strategies build on its collective runtime"),
    "keras": ((3, 12), "the bridge repairs the training loop of these versions"),
}

_lock = threading.Lock()
_current: Runtime | None = None


def create(
    config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None, **overrides: Any
) -> Runtime:
    """Configures this process for distributed training; the first call of a script.

    Args:
        config: a Config, a mapping of settings, the path of a YAML or JSON file, or None.
        **overrides: settings that go before all others, flat (`stages=4`) or by group.

    Returns:
        The Runtime. A second call with the same settings returns the same one. On a worker or ps of
        a cluster with parameter servers it does not return: it serves until the chief's program ends,
        and ends the process then.

    Raises:
        ConfigError: a setting is wrong, contradicts another one or the cluster; or this process
            was already configured otherwise, by an earlier call or another use of TensorFlow.
        ClusterError: the cluster is wrong, or a task of it does not answer.
        UnsupportedError: this version does not have the strategy.
        SystemExit: on a worker or ps of a cluster with parameter servers, at the end of the job; the
            code is 0 if the chief has finished.
    """
    global _current
    settings = Config.resolve(config, overrides)
    cluster = Cluster.resolve()
    with _lock:
        if _current is not None:
            _check_same(_current, settings, cluster)
            return _current
        _current = _create(settings, cluster)
        return _current


def _create(config: Config, cluster: Cluster) -> Runtime:
    combinations.check(config, cluster)
    local_rank = devices.local_rank_from(os.environ)
    if combinations.is_server(cluster):
        plan = devices.plan_of(config, cluster, local_rank)
        if cluster.task_type == "worker":
            devices.share_cores(cluster, local_rank, os.environ)
        serving.serve(cluster, config.start_timeout, plan)
    _check_environment()
    found = devices.configure(config, cluster, local_rank)
    name = combinations.strategy_name(config, cluster, found.count)
    combinations.check_devices(config, name, found.kind)
    # One device at least for each worker; a local strategy's number of replicas is known exactly.
    least = replica_count(name, config, cluster, found.count)
    batch_sizes(config, least)
    policy = _apply_precision(config)
    _seed(config)

    from tfdist.keras_bridge import scope
    from tfdist.strategies import registry

    strategy = registry.build(name, config, cluster)
    data_seed = same_job.agree(strategy, config, found, config.start_timeout)
    replicas = least if name == "parameter_server" else strategy.num_replicas_in_sync
    runtime = Runtime(
        config=config,
        cluster=cluster,
        strategy=strategy,
        strategy_name=name,
        precision=policy,
        num_replicas=replicas,
        batch_sizes=batch_sizes(config, replicas),
        data_seed=data_seed,
    )
    scope.set_active(strategy)
    logger.info("%s", runtime.describe())
    return runtime


def _check_same(runtime: Runtime, config: Config, cluster: Cluster) -> None:
    """Refuses a second `create` that asks for something else.

    Raises:
        ConfigError: naming the settings that differ.
    """
    before, now = runtime.config.flat(), config.flat()
    different = [
        f"{name}: {now[name]} ({config.origin(name)}), was {before[name]}"
        for name in now
        if now[name] != before[name]
    ]
    if cluster != runtime.cluster:
        different.append(f"TF_CONFIG: {cluster.to_tf_config()}, was {runtime.cluster.source}")
    if different:
        raise ConfigError(
            explain(
                "tfdist.create() has already configured this process with other settings",
                received="; ".join(different),
                fix="Call it once per process, first thing, with the final settings; restart the "
                "process (or the notebook's kernel) to change them",
            )
        )


def _check_environment() -> None:
    """Refuses a Keras that doesn't run on TensorFlow, an old version, an active `distribution`.

    Raises:
        ConfigError: naming what is wrong.
    """
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if "keras" not in sys.modules and backend != "tensorflow":
        raise _backend_error(backend, "environment KERAS_BACKEND")  # Its import may fail already.
    import keras
    import tensorflow as tf

    for package, found in (("tensorflow", tf.__version__), ("keras", keras.__version__)):
        oldest, reason = _OLDEST[package]
        if tuple(map(int, re.findall(r"\d+", found)[:2])) < oldest:
            wanted = ".".join(map(str, oldest))
            raise ConfigError(
                explain(
                    f"tfdist needs {package} {wanted} or later: {reason}",
                    received=f"{package} {found}",
                    fix=f"pip install --upgrade '{package}>={wanted}'",
                )
            )
    if keras.config.backend() != "tensorflow":
        raise _backend_error(keras.config.backend(), "KERAS_BACKEND or keras.json")
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise ConfigError(
            explain(
                "keras.distribution has no effect on the TensorFlow backend: nothing would be "
                "distributed by it (keras issue 18983)",
                received=f"keras.distribution.{type(distribution).__name__}",
                fix="Remove set_distribution(...); tfdist.create() distributes the training",
            )
        )


def _backend_error(backend: str, source: str) -> ConfigError:
    return ConfigError(
        explain(
            "tf.distribute needs Keras's TensorFlow backend",
            received=f"backend {backend}",
            source=source,
            fix="Set KERAS_BACKEND=tensorflow before Keras is imported",
        )
    )


def _apply_precision(config: Config) -> str:
    """Sets the dtype policy; by default, one that the script has set before is kept."""
    if config.origin("precision") != "default" or precision.current() == config.precision:
        precision.apply(config.precision)
    return precision.current()


def _seed(config: Config) -> None:
    import keras
    import tensorflow as tf

    if config.seed is not None:
        keras.utils.set_random_seed(config.seed)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
