"""The nested groups of a Config: settings that belong together, each checked on its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tfdist.config.fields import Kind, did_you_mean, kind_of, setting
from tfdist.errors import ConfigError, explain

__all__ = ["Checked", "Communication", "Data", "ParameterServer", "Pipeline", "Recovery"]

FLAG = Kind("bool")
COUNT = Kind("int", minimum=1)
_PATH = Kind("path", optional=True)
_AUTOTUNE = -1

_T = TypeVar("_T", bound="Checked")


class Checked:
    """Checks every field against its Kind, and remembers which ones the caller gave."""

    _given: frozenset[str]
    _origins: Mapping[str, str]

    def __new__(cls: type[_T], *args: Any, **given: Any) -> _T:
        names = {item.name for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in given:
            if name not in names:
                raise cls._unknown_argument(name)
        self = super().__new__(cls)
        object.__setattr__(self, "_given", frozenset(given))
        return self

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            kind = kind_of(item)
            if kind is not None:
                value = kind.check(item.name, getattr(self, item.name), type(self).__name__)
                object.__setattr__(self, item.name, value)

    @classmethod
    def _unknown_argument(cls, name: str) -> ConfigError:
        """The error for a keyword argument that is no field of the class."""
        names = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return ConfigError(
            explain(
                f"`{cls.__name__}` has no field `{name}`",
                received=f"{cls.__name__}({name}=...)",
                fix=did_you_mean(name, names),
            )
        )


@dataclass(frozen=True, kw_only=True)
class Communication(Checked):
    """How replicas exchange gradients."""

    implementation: str = setting(
        "auto",
        Kind("str", choices=("auto", "ring", "nccl")),
        "collective implementation; nccl needs GPUs on every worker",
    )
    bytes_per_pack: int = setting(
        0, Kind("int", minimum=0), "gradients are packed into parts of this size; 0 = automatic"
    )
    collective_timeout: float | None = setting(
        None,
        Kind("float", minimum=0, exclusive=True, optional=True),
        "seconds after which a collective that a worker has not joined fails",
    )


@dataclass(frozen=True, kw_only=True)
class Data(Checked):
    """The input pipeline behind `Runtime.dataset`."""

    dataset: str = setting("digits", Kind("str"), "name of a TensorFlow Datasets data set")
    data_dir: str | None = setting(None, _PATH, "where data sets are prepared and read")
    shuffle: bool = setting(True, FLAG, "shuffle the training data each epoch")
    shuffle_buffer: int = setting(10_000, COUNT, "rows of the shuffle buffer")
    cache: bool = setting(True, FLAG, "keep the decoded data in memory after the first epoch")
    parallel_calls: int = setting(
        _AUTOTUNE, Kind("int", minimum=1, also=_AUTOTUNE), "parallel map calls; -1 = automatic"
    )
    prefetch: int = setting(
        _AUTOTUNE,
        Kind("int", minimum=0, also=_AUTOTUNE),
        "batches prepared ahead; 0 = none, -1 = automatic",
    )
    drop_remainder: bool = setting(False, FLAG, "drop a last batch that is not full")
    shard: str = setting(
        "global",
        Kind("str", choices=("global", "local", "none")),
        "how a user's own data set is divided: global = each worker takes its part of it, "
        "local = each worker brings its own part, none = every worker reads all of it",
    )


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Checked):
    """How a coordinator, its workers and its parameter servers train together."""

    synchronous: bool = setting(
        False, FLAG, "all workers' gradients of a step are averaged on the same weights"
    )
    backup_workers: int = setting(
        0,
        Kind("int", minimum=0),
        "a synchronous step goes on without the gradients of so many of the slowest workers",
    )
    in_flight: int = setting(
        4, COUNT, "steps (or executions of several) scheduled ahead for each worker"
    )
    placement: str = setting(
        "bytes",
        Kind("str", choices=("bytes", "round_robin")),
        "where a variable is born: bytes = on the ps that holds the least, round_robin = in turn",
    )
    device_filters: bool = setting(
        True, FLAG, "workers see the parameter servers and the chief, not each other"
    )
    worker_timeout: float = setting(
        300.0,
        Kind("float", minimum=0, exclusive=True),
        "seconds that `fit` waits when no worker is left, before it fails",
    )


@dataclass(frozen=True, kw_only=True)
class Pipeline(Checked):
    """How a model is split over devices by the pipeline and hybrid strategies."""

    stages: int = setting(1, COUNT, "stages that the model's layers are split into")
    microbatches: int = setting(1, COUNT, "parts that each batch is cut into")
    schedule: str = setting(
        "1f1b",
        Kind("str", choices=("1f1b", "gpipe", "interleaved")),
        "order of forward and backward steps",
    )
    chunks: int = setting(1, COUNT, "parts of the model on each stage (interleaved)")
    balance: str | tuple[str, ...] | tuple[int, ...] = setting(
        "time",
        Kind("list", choices=("time", "flops", "parameters")),
        "what the stages share evenly; or the layers that the stages but the first begin with, "
        "or the number of operations of each stage",
    )
    recompute: str = setting(
        "none",
        Kind("str", choices=("none", "full", "except_last"), booleans=("none", "full")),
        "activations that are dropped and computed again in the backward step",
    )
    memory_limit: int | None = setting(
        None, Kind("bytes", optional=True), "bytes of a device that a stage may take"
    )
    replicas: int = setting(1, COUNT, "pipelines that train side by side (hybrid)")


@dataclass(frozen=True, kw_only=True)
class Recovery(Checked):
    """Where a job writes what it needs to go on after a failure, and its logs."""

    backup_dir: str | None = setting(None, _PATH, "backups for resuming an interrupted job")
    backup_freq: int | str = setting(
        "epoch",
        Kind("int", choices=("epoch",), minimum=1),
        "a backup every so many batches, or every epoch",
    )
    checkpoint_dir: str | None = setting(None, _PATH, "the best and the last model")
    log_dir: str | None = setting(None, _PATH, "TensorBoard logs and the CSV history")
