"""How a Config is put together: layers of settings, each with the origin of every value.

A layer maps flat field names to `Setting`s. Layers are merged from the weakest to the strongest
(environment, file, flags, code); a Config is then built from the result. Everything here works on
any dataclass whose fields are made by `tfdist.config.fields.setting`, grouped one level deep.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import typing
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tfdist.config.fields import Kind, did_you_mean, kind_of, nearest, plain_keys, short
from tfdist.errors import ConfigError, explain

__all__ = [
    "ENV_PREFIX",
    "Layer",
    "Setting",
    "Slot",
    "environment",
    "from_mapping",
    "merge",
    "slots",
]

logger = logging.getLogger(__name__)

ENV_PREFIX = "TFDIST_"

# Set by launchers for their children, or read by tfdist itself; not settings.
_OTHER_ENVIRONMENT = frozenset(
    {
        "HOSTS",
        "JOB",
        "LOCAL_RANK",
        "PORT",
        "RANK",
        "ROLES",
        "SAVE_TIMEOUT",
        "SERVICE",
        "WORLD_SIZE",
    }
)


class Setting(NamedTuple):
    """A value and the text that says where it came from."""

    value: Any
    origin: str


Layer = dict[str, Setting]


class Slot(NamedTuple):
    """One field of a Config: where it lives, what it accepts, its default and help text."""

    name: str
    group: str | None
    kind: Kind
    default: Any
    help: str

    @property
    def path(self) -> str:
        """The name with its group, such as data.shuffle_buffer."""
        return f"{self.group}.{self.name}" if self.group else self.name


def slots(config_class: type) -> Mapping[str, Slot]:
    """Every field of the class and of its groups, by flat name."""
    return _slots(config_class)


def groups(config_class: type) -> Mapping[str, type]:
    """The nested groups of the class: field name -> dataclass."""
    return _groups(config_class)


@functools.cache
def _slots(config_class: type) -> Mapping[str, Slot]:
    found: dict[str, Slot] = {}
    for group, owner in ((None, config_class), *groups(config_class).items()):
        for field in dataclasses.fields(owner):
            kind = kind_of(field)
            if kind is None:
                continue
            if field.name in found:
                raise TypeError(f"Field {field.name!r} is in two groups of {config_class.__name__}")
            found[field.name] = Slot(
                field.name, group, kind, field.default, field.metadata.get("help", "")
            )
    return found


@functools.cache
def _groups(config_class: type) -> Mapping[str, type]:
    hints = typing.get_type_hints(config_class)
    return {
        field.name: hints[field.name]
        for field in dataclasses.fields(config_class)
        if dataclasses.is_dataclass(hints[field.name])
    }


def from_mapping(
    config_class: type, values: Mapping[str, Any], origin: str, *, text: bool = False
) -> Layer:
    """Turns a flat or nested mapping into a layer.

    A group may be a mapping, which sets the fields it names, or an instance of the group's class,
    which sets the fields that were given to its constructor.

    Args:
        config_class: the Config class.
        values: settings by flat name, or by group.
        origin: where they came from; "{}" in it is replaced by the setting's name.
        text: strings may stand for numbers, as in a file (YAML reads `1e3` as text).

    Returns:
        The layer.

    Raises:
        ConfigError: a name is unknown, in the wrong group or given twice, or a value is wrong.
    """
    layer: Layer = {}
    known = slots(config_class)
    for key in plain_keys(values, origin.format("")):
        group_class = groups(config_class).get(key)
        if group_class is None:
            members: Mapping[str, Any] = {key: values[key]}
        else:
            members = _group_members(key, group_class, values[key], origin.format(key))
        for name in plain_keys(members, origin.format(key)):
            slot = known.get(name)
            if slot is None or (group_class is not None and slot.group != key):
                owner = None if group_class is None else key
                raise unknown_field(config_class, name, origin.format(name), group=owner)
            if name in layer:
                raise ConfigError(
                    explain(
                        f"`{name}` is given twice, alone and in the group `{slot.group}`",
                        source=origin.format(name),
                        fix="Keep one of the two",
                    )
                )
            value = members[name]
            read = slot.kind.parse if text and _is_number_text(slot, value) else slot.kind.check
            layer[name] = Setting(read(name, value, origin.format(name)), origin.format(name))
    return layer


def _is_number_text(slot: Slot, value: Any) -> bool:
    return isinstance(value, str) and slot.kind.base in ("int", "float")


def _group_members(name: str, group_class: type, value: Any, origin: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, group_class):
        given = getattr(value, "_given", ())
        return {field: getattr(value, field) for field in sorted(given)}
    raise ConfigError(
        explain(
            f"`{name}` must be a mapping or a {group_class.__name__}",
            received=f"{name}={short(value)} ({type(value).__name__})",
            source=origin,
            fix=f"Write {name}={{...}} with the fields of {group_class.__name__}",
        )
    )


def unknown_field(
    config_class: type, name: str, origin: str | None, *, group: str | None = None
) -> ConfigError:
    """The error for a name that is no setting, or not one of the named group."""
    slot = slots(config_class).get(name)
    if slot is not None:
        home = f"in `{slot.group}`" if slot.group else "at the top level"
        problem, fix = f"`{name}` is not a field of `{group}`", f"It belongs {home}"
    else:
        problem = f"Unknown setting `{name}`" + (f" in `{group}`" if group else "")
        members = [known for known, slot in slots(config_class).items() if slot.group == group]
        everything = [*slots(config_class), *groups(config_class)]
        fix = did_you_mean(name, members if group else everything)
    return ConfigError(explain(problem, received=name, source=origin, fix=fix))


def environment(config_class: type, environ: Mapping[str, str]) -> Layer:
    """The layer of TFDIST_<FIELD> environment variables; an empty variable counts as not set.

    Raises:
        ConfigError: a variable's text can't be read as its field's type.
    """
    layer: Layer = {}
    known = slots(config_class)
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or not environ[variable].strip():
            continue
        name = variable[len(ENV_PREFIX) :].lower()
        origin = f"environment {variable}"
        if name in known:
            value = known[name].kind.parse(name, environ[variable], origin)
            layer[name] = Setting(value, origin)
        elif variable[len(ENV_PREFIX) :] not in _OTHER_ENVIRONMENT:
            near = nearest(name, known, cutoff=0.8)
            if near:  # Others may use the prefix too, so only a likely slip is worth a word.
                logger.warning(
                    "%s is not a tfdist setting and is ignored; did you mean %s%s?",
                    variable,
                    ENV_PREFIX,
                    near.upper(),
                )
    return layer


def merge(layers: Iterable[Layer], exclusive: tuple[str, str]) -> Layer:
    """Merges layers, the weakest first.

    Args:
        layers: the layers.
        exclusive: two fields of which only one may be set; the one from the stronger layer
            displaces the other.

    Returns:
        One layer.

    Raises:
        ConfigError: a layer sets both of the two exclusive fields.
    """
    merged: Layer = {}
    for layer in layers:
        present = [name for name in exclusive if name in layer and layer[name].value is not None]
        if len(present) == 2:
            raise exclusive_error(exclusive, {name: layer[name] for name in exclusive})
        if present:
            merged.pop(exclusive[1 - exclusive.index(present[0])], None)
        merged.update(layer)
    return merged


def exclusive_error(names: tuple[str, str], given: Mapping[str, Setting]) -> ConfigError:
    """The error for two settings that exclude each other."""
    return ConfigError(
        explain(
            f"`{names[0]}` and `{names[1]}` exclude each other",
            received=", ".join(f"{name}={given[name].value}" for name in names),
            source=" and ".join(dict.fromkeys(given[name].origin for name in names)),
            fix="Give one of the two; the other follows from the number of replicas",
        )
    )
