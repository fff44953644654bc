"""Every setting of a job, in one frozen object that knows where each value came from.

Precedence, strongest first: overrides given to `create`, then flags, then the file, then the
environment (`TFDIST_<FIELD>`), then the defaults.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist.config import files as config_files
from tfdist.config import layers as config_layers
from tfdist.config.fields import Kind, setting
from tfdist.config.groups import (
    FLAG,
    Checked,
    Communication,
    Data,
    ParameterServer,
    Pipeline,
    Recovery,
)
from tfdist.config.layers import Layer, Setting
from tfdist.errors import ConfigError, explain

__all__ = [
    "DEFAULT_GLOBAL_BATCH_SIZE",
    "STRATEGIES",
    "Communication",
    "Config",
    "Data",
    "ParameterServer",
    "Pipeline",
    "Recovery",
]

STRATEGIES = (
    "auto",
    "single",
    "mirrored",
    "multi_worker",
    "parameter_server",
    "pipeline",
    "hybrid",
    "tpu",
)
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "float16", "float64")
DEFAULT_GLOBAL_BATCH_SIZE = 32

_BATCH_SIZES = ("global_batch_size", "per_replica_batch_size")
_BATCH = Kind("int", minimum=1, optional=True)


@dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """Every setting of a job.

    Unknown names, wrong types and values out of range raise `ConfigError` at once. Field names
    don't repeat between groups, so `replace(shuffle_buffer=10)` is as clear as
    `replace(data=Data(shuffle_buffer=10))`.
    """

    strategy: str = setting("auto", Kind("str", choices=STRATEGIES), "how training is distributed")
    precision: str = setting("float32", Kind("str", choices=PRECISIONS), "number format of layers")
    devices: str = setting(
        "auto", Kind("devices"), "auto, cpu, cpu:4 (four logical CPU devices), gpu, gpu:0,1"
    )
    gpu_memory_limit: int | None = setting(
        None,
        Kind("bytes", optional=True),
        "bytes that the process may take of each GPU, such as 8GiB; without it memory grows on demand",
    )
    global_batch_size: int | None = setting(
        None, _BATCH, f"rows per step over all replicas (default {DEFAULT_GLOBAL_BATCH_SIZE})"
    )
    per_replica_batch_size: int | None = setting(
        None, _BATCH, "rows per step of one replica; excludes global_batch_size"
    )
    seed: int | None = setting(
        None,
        Kind("int", minimum=0, maximum=2**32 - 1, optional=True),
        "seed of weights, shuffling and dropout",
    )
    deterministic: bool = setting(
        False, FLAG, "use only deterministic TensorFlow kernels (slower); needs a seed"
    )
    sync_batch_norm: bool = setting(
        False, FLAG, "BatchNormalization uses the statistics of the whole global batch"
    )
    allow_single: bool = setting(
        False, FLAG, "multi_worker without a cluster trains alone instead of failing"
    )
    start_timeout: float = setting(
        300.0, Kind("float", minimum=0, exclusive=True), "seconds to wait for the other processes"
    )
    verbose: int | str = setting(
        "auto",
        Kind("int", choices=("auto",), minimum=0, maximum=2),
        "progress output: 0 none, 1 bar, 2 a line per epoch",
    )
    communication: Communication = field(default_factory=Communication)
    data: Data = field(default_factory=Data)
    parameter_server: ParameterServer = field(default_factory=ParameterServer)
    pipeline: Pipeline = field(default_factory=Pipeline)
    recovery: Recovery = field(default_factory=Recovery)

    def __post_init__(self) -> None:
        """Checks every value, and the combinations that need no knowledge of the devices.

        Raises:
            ConfigError: a value is wrong, or two values contradict each other.
        """
        super().__post_init__()
        given = {name: getattr(self, name) for name in sorted(self._given)}
        layer = config_layers.from_mapping(Config, given, "Config({}=...)")
        for name, group_class in config_layers.groups(Config).items():
            value = getattr(self, name)
            if isinstance(value, Mapping):
                object.__setattr__(self, name, group_class(**value))
            elif not isinstance(value, group_class):
                config_layers.from_mapping(Config, {name: value}, "Config({}=...)")
        object.__setattr__(self, "_origins", {key: item.origin for key, item in layer.items()})
        _check_combinations(layer)

    @classmethod
    def _unknown_argument(cls, name: str) -> ConfigError:
        slot = config_layers.slots(cls).get(name)
        if slot is None or slot.group is None:
            return config_layers.unknown_field(cls, name, "Config(...)")
        group = config_layers.groups(cls)[slot.group].__name__
        return ConfigError(
            explain(
                f"`{name}` belongs to the group `{slot.group}`",
                received=f"Config({name}=...)",
                fix=f"Write Config({slot.group}={group}({name}=...)), "
                f"or Config().replace({name}=...)",
            )
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Reads a YAML or JSON file; groups may be nested or flat.

        Args:
            path: the file; `.json` is read as JSON, everything else as YAML.

        Returns:
            The Config, whose given values have the file as their origin.

        Raises:
            ConfigError: the file is missing, malformed, or has an unknown or wrong setting.
        """
        return cls._from_layers(file_layer(path))

    @classmethod
    def resolve(
        cls,
        config: Config | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Config:
        """Merges all sources of settings, by precedence.

        Args:
            config: a Config (from flags, a file or code), a mapping, the path of a file, or None.
            overrides: the strongest settings, flat or nested.
            environ: the environment; None means `os.environ`.

        Returns:
            The Config that holds.

        Raises:
            ConfigError: a setting is unknown or wrong, whatever its source.
        """
        if config is None:
            given: Layer = {}
        elif isinstance(config, Config):
            given = config.given()
        elif isinstance(config, Mapping):
            given = config_layers.from_mapping(cls, config, "config[{!r}]")
        elif isinstance(config, (str, os.PathLike)):
            given = file_layer(config)
        else:
            raise ConfigError(
                explain(
                    "`config` must be a Config, a mapping, or the path of a YAML or JSON file",
                    received=f"{type(config).__name__}",
                    fix="Such as create('job.yaml') or create(Config(strategy='mirrored'))",
                )
            )
        strongest = config_layers.from_mapping(cls, overrides or {}, "create({}=...)")
        return cls.merge(given, strongest, environ=environ)

    @classmethod
    def merge(cls, *layers: Layer, environ: Mapping[str, str] | None = None) -> Config:
        """Builds a Config from layers of settings, on top of the environment and the defaults.

        Args:
            *layers: the layers, the weakest first.
            environ: the environment; None means `os.environ`.

        Returns:
            The Config.

        Raises:
            ConfigError: an environment variable is wrong, or two settings contradict each other.
        """
        variables = os.environ if environ is None else environ
        return cls._from_layers(config_layers.environment(cls, variables), *layers)

    @classmethod
    def _from_layers(cls, *layers: Layer) -> Config:
        merged = config_layers.merge(layers, _BATCH_SIZES)
        _check_combinations(merged)
        by_group: dict[str | None, dict[str, Any]] = {None: {}}
        for name, item in merged.items():
            group = config_layers.slots(cls)[name].group
            by_group.setdefault(group, {})[name] = item.value
        top = by_group.pop(None)
        nested = {
            name: config_layers.groups(cls)[name](**values)
            for name, values in by_group.items()
            if name is not None
        }
        config = cls(**top, **nested)
        object.__setattr__(config, "_origins", {name: item.origin for name, item in merged.items()})
        return config

    def given(self) -> Layer:
        """The settings that were given, not left at their default, with their origins."""
        values = self.flat()
        return {name: Setting(values[name], origin) for name, origin in self._origins.items()}

    def origin(self, name: str) -> str:
        """Where a field's value came from; "default" when nobody set it."""
        return getattr(self, "_origins", {}).get(name, "default")

    def flat(self) -> dict[str, Any]:
        """Every value by its flat name."""
        return {
            name: getattr(getattr(self, slot.group) if slot.group else self, name)
            for name, slot in config_layers.slots(type(self)).items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested by group: what `load` reads back."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> Config:
        """A copy with other values.

        Args:
            **changes: fields by flat name; or a group, as a mapping of the fields to change or as
                an instance that takes the group's place.

        Returns:
            The new Config. A new `global_batch_size` displaces a `per_replica_batch_size`, and
            the other way round.

        Raises:
            ConfigError: a name or value is wrong.
        """
        kept = self.given()
        known = config_layers.slots(type(self))
        for name, group_class in config_layers.groups(type(self)).items():
            if isinstance(changes.get(name), group_class):
                kept = {key: item for key, item in kept.items() if known[key].group != name}
        return self._from_layers(
            kept, config_layers.from_mapping(type(self), changes, "replace({}=...)")
        )

    def explain(self) -> str:
        """A table of every field, its value, and where the value came from."""
        rows = [("field", "value", "origin")]
        values = self.flat()
        for name, slot in config_layers.slots(type(self)).items():
            rows.append((slot.path, str(values[name]), self.origin(name)))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows]
        lines.insert(
            1, f"{'-' * widths[0]}  {'-' * widths[1]}  {'-' * max(len(r[2]) for r in rows)}"
        )
        return "\n".join(lines)


def _check_combinations(given: Layer) -> None:
    """Refuses settings that contradict each other.

    Raises:
        ConfigError: naming the settings, and where they came from.
    """
    config_layers.merge([given], _BATCH_SIZES)
    deterministic, seed = given.get("deterministic"), given.get("seed")
    if deterministic and deterministic.value and (seed is None or seed.value is None):
        raise ConfigError(
            explain(
                "`deterministic` needs a seed: TensorFlow refuses unseeded random operations",
                received="deterministic=True, seed=None",
                source=deterministic.origin,
                fix="Set `seed`, such as seed=1",
            )
        )


def file_layer(path: str | os.PathLike[str]) -> Layer:
    """The layer of settings in a file.

    Raises:
        ConfigError: the file can't be read, or has an unknown or wrong setting.
    """
    origin = os.fspath(path).replace("{", "{{").replace("}", "}}")
    return config_layers.from_mapping(Config, config_files.read_mapping(path), origin, text=True)
