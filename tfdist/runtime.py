"""What `tfdist.create` returns: a process that is ready to train."""

from __future__ import annotations

import dataclasses
import inspect
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tfdist.cluster import Cluster
from tfdist.config.fields import did_you_mean, short
from tfdist.errors import ConfigError, explain

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from tfdist.batch_sizes import BatchSizes
    from tfdist.config import Config

__all__ = ["Runtime"]


class Runtime:
    """A strategy with everything around it that fits it: data, callbacks, batch sizes.

    Attributes:
        config: the settings that hold, with their origins.
        cluster: the cluster, and this process's place in it.
        strategy: the `tf.distribute.Strategy`.
        strategy_name: its name, such as "mirrored"; never "auto".
        precision: the dtype policy of the layers.
        num_replicas: replicas over all workers that share one step; 1 with asynchronous parameter
            servers, where each worker does steps of its own.
        global_batch_size: rows of one step over all replicas.
        per_replica_batch_size: rows of one step of one replica.
        data_seed: the seed of the data's order, the same on every worker.
    """

    def __init__(
        self,
        *,
        config: Config,
        cluster: Cluster,
        strategy: tf.distribute.Strategy,
        strategy_name: str,
        precision: str,
        num_replicas: int,
        batch_sizes: BatchSizes,
        data_seed: int,
    ) -> None:
        """Stores the parts; `tfdist.create` makes them."""
        self.config = config
        self.cluster = cluster
        self.strategy = strategy
        self.strategy_name = strategy_name
        self.precision = precision
        self.num_replicas = num_replicas
        self.global_batch_size = batch_sizes.global_size
        self.per_replica_batch_size = batch_sizes.per_replica
        self.data_seed = data_seed

    @property
    def rank(self) -> int:
        """This process among the workers, from 0 (the chief)."""
        return self.cluster.rank

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and prints progress for the job."""
        return self.cluster.is_chief

    @property
    def num_workers(self) -> int:
        """Processes that train; with parameter servers, those that compute: not the chief."""
        if self._has_servers:
            return len(self.cluster.jobs["worker"])
        return self.cluster.num_workers

    @property
    def _has_servers(self) -> bool:
        return self.strategy_name == "parameter_server"

    def scope(self) -> AbstractContextManager[Any]:
        """The context in which the model is built and compiled; `strategy.scope()`.

        Raises:
            ConfigError: TF_CONFIG was set after `tfdist.create`, which therefore missed the cluster.
        """
        self._check_cluster()
        return self.strategy.scope()

    def _check_cluster(self) -> None:
        if self.cluster.task_type is not None:
            return
        now = Cluster.resolve()
        if now.task_type is not None:
            raise ConfigError(
                explain(
                    "TF_CONFIG was set after tfdist.create(): this process would train alone",
                    received=f"{now.task_name} of {len(now.tasks())} tasks",
                    source=now.source,
                    fix="Set TF_CONFIG before tfdist.create(), best before the process starts",
                )
            )

    def dataset(
        self,
        source: Any = None,
        split: str = "train",
        **options: Any,
    ) -> tf.data.Dataset:
        """This worker's part of a data set, in batches, for `fit`, `evaluate` and `predict`.

        All workers must call it alike; they compare their data before anything is read.

        Args:
            source: the name of a data set, a `tf.data.Dataset`, arrays, or a function of a
                `tf.distribute.InputContext`; None takes the Config's `dataset`.
            split: which part of a named data set, such as "train" or "test[:50%]". Only parts
                whose name begins with "train" are shuffled, unless `training` says otherwise.
            **options: what else `tfdist.data.make_dataset` takes, such as `training`, `map_fn`,
                `steps`, `repeat`, `global_batch_size` and `seed`; or fields of the Config's `data`
                group, such as `shuffle`, for this data set alone.

        Returns:
            The data set.

        Raises:
            ConfigError: an option is unknown or has a wrong value.
            DataError: the data can't be found, or doesn't fit the cluster.
        """
        from tfdist.data import make_dataset

        marker = self.strategy.tfdist
        place: dict[str, Any] = {
            # The programs that read data: all workers, or the chief of parameter servers alone.
            "num_workers": marker.num_workers,
            "rank": marker.rank,
            "local_replicas": self.num_replicas // marker.num_workers,
            "options": self.config.data,
            "exchange": lambda text: marker.exchange("dataset", text, self.config.start_timeout),
        }
        fields = [item.name for item in dataclasses.fields(self.config.data)]
        parameters = inspect.signature(make_dataset).parameters.values()
        named = {item.name for item in parameters if item.kind is item.KEYWORD_ONLY}
        known = sorted({*fields, *named} - place.keys())
        for name in options:
            if name not in known:
                raise ConfigError(
                    explain(
                        f"Runtime.dataset() has no option `{name}`",
                        received=f"{name}={short(options[name])}",
                        fix=did_you_mean(name, known),
                    )
                )
        defaults = {"global_batch_size": self.global_batch_size, "seed": self.data_seed}
        given = {**defaults, **options}
        if marker.fixed_shapes:
            from tfdist.data import fixed_shapes

            return fixed_shapes.make(make_dataset, source, split=split, **place, **given)
        return make_dataset(source, split=split, **place, **given)

    def callbacks(self, **options: Any) -> list[keras.callbacks.Callback]:
        """The callbacks that suit the Config: backups, checkpoints, logs; safe on every worker.

        Args:
            **options: see `tfdist.callbacks.default_callbacks`.

        Returns:
            A new list, for `fit(callbacks=...)`; add your own to it.
        """
        from tfdist.callbacks import default_callbacks

        return default_callbacks(self.config, self.strategy, **options)

    def describe(self) -> str:
        """One line: workers, devices, replicas, strategy, precision, and both batch sizes."""
        who = f"; this is {self.cluster.task_name}" if self.cluster.task_type else ""
        return (
            f"{self._describe_processes()}, strategy {self.strategy_name}, precision "
            f"{self.precision}, global batch {self.global_batch_size}, "
            f"{self.per_replica_batch_size} per replica{who}"
        )

    def _describe_processes(self) -> str:
        workers = _count(self.num_workers, "worker")
        if self._has_servers:
            is_synchronous = self.config.parameter_server.synchronous
            how = "together on each batch" if is_synchronous else "each on batches of its own"
            return f"{workers} + {self.cluster.num_ps} ps, {how}"
        devices = self.num_replicas // self.num_workers
        return f"{workers} x {_count(devices, 'device')} = {_count(self.num_replicas, 'replica')}"

    def __repr__(self) -> str:
        """The description, in brackets."""
        return f"<tfdist.Runtime: {self.describe()}>"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
