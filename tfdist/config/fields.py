"""What a Config field may hold: its type, its limits, and how text becomes its value.

A `Kind` is attached to a dataclass field by `setting(...)`; the Config, the flags, the environment
and the files all check a value through the same Kind, so that they agree and word errors alike.
"""

from __future__ import annotations

import dataclasses
import difflib
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.config.device_spec import DeviceSpec
from tfdist.config.sizes import parse_bytes
from tfdist.errors import ConfigError, explain

__all__ = ["Kind", "did_you_mean", "kind_of", "nearest", "plain_keys", "setting", "short"]

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_NOUNS = {"path": "a path", "devices": "a device list", "bytes": "bytes, such as 16GiB"}


def short(value: Any, limit: int = 200) -> str:
    """The value's repr, cut to a length that fits a message."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like the given one, or None when none is like it."""
    near = difflib.get_close_matches(str(name).lower(), list(known), n=1, cutoff=cutoff)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known name and lists them all."""
    names = list(known)
    near = nearest(name, names)
    suggestion = f"Did you mean {near!r}? " if near else ""
    return suggestion + "Known: " + ", ".join(names)


@dataclass(frozen=True)
class Kind:
    """The values that one setting accepts.

    Attributes:
        base: "bool", "int", "float", "str", "path", "devices", "bytes" (a number, or text such as
            16GiB) or "list" (one of the choices, or a list of names or of integers).
        choices: the only strings allowed; for an "int" they are allowed beside the numbers.
        minimum: the smallest number allowed.
        exclusive: the minimum itself is not allowed.
        also: a number below the minimum that is allowed, such as -1 for AUTOTUNE.
        maximum: the largest number allowed.
        optional: None is allowed.
        booleans: what False and True stand for, beside the choices.
    """

    base: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    exclusive: bool = False
    also: int | None = None
    maximum: float | None = None
    optional: bool = False
    booleans: tuple[str, str] | None = None

    def describe(self) -> str:
        """What is allowed, for help texts and messages."""
        words: list[str] = []
        if self.choices:
            words.append("one of " * (len(self.choices) > 1) + ", ".join(self.choices))
        if self.base in ("int", "float"):
            words.append(self._describe_number())
        elif self.base == "bool":
            words.append("true or false")
        elif self.base == "list":
            words.append("a list of names or of integers")
        elif not self.choices:
            words.append(_NOUNS.get(self.base, "a name"))
        text = " or ".join(words)
        return text + " or none" if self.optional else text

    def _describe_number(self) -> str:
        text = "an integer" if self.base == "int" else "a number"
        if self.minimum is not None and self.maximum is not None:
            text += f" from {self.minimum:.0f} to {self.maximum:.0f}"
        elif self.minimum is not None:
            text += f" greater than {self.minimum:g}" if self.exclusive else f" >= {self.minimum:g}"
        return text + (f" (or {self.also})" if self.also is not None else "")

    def check(self, name: str, value: Any, source: str | None = None) -> Any:
        """Checks a value given in Python and brings it to its normal form.

        Args:
            name: the field's name, for the message.
            value: the value.
            source: where it came from, for the message.

        Returns:
            The value as a plain Python bool, int, float, str or None.

        Raises:
            ConfigError: the type is wrong, or the value is outside the limits.
        """
        if value is None:
            if self.optional:
                return None
            raise self._error(name, value, source)
        if self.base == "bool":
            return self._check_bool(name, value, source)
        if self.base == "bytes":
            return self._check_bytes(name, value, source)
        if self.base == "list":
            return self._check_list(name, value, source)
        if self.booleans is not None and isinstance(value, bool):
            return self.booleans[value]
        if isinstance(value, str):
            if self.base in ("int", "float") and value not in self.choices:
                raise self._error(name, value, source)
            return self._check_text(name, value, source)
        if self.base == "path" and isinstance(value, os.PathLike):
            return self._check_text(name, os.fspath(value), source)
        if self.base in ("int", "float"):
            return self._check_number(name, value, source)
        raise self._error(name, value, source)

    def parse(self, name: str, text: str, source: str | None = None) -> Any:
        """Reads a value from text (a flag, an environment variable) and checks it.

        Raises:
            ConfigError: the text can't be read, or the value is outside the limits.
        """
        text = text.strip()
        if self.optional and text.lower() in ("none", "null", ""):
            return None
        value: Any = text
        if self.base == "bool":
            if text.lower() not in _TRUE + _FALSE:
                raise self._error(name, text, source)
            value = text.lower() in _TRUE
        elif self.base in ("int", "float") and text not in self.choices:
            try:
                value = int(text) if self.base == "int" else float(text)
            except ValueError:
                raise self._error(name, text, source) from None
        return self.check(name, value, source)

    def _check_bool(self, name: str, value: Any, source: str | None) -> bool:
        # NumPy's own bool has no common base with Python's, but says what it is.
        if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
            return bool(value)
        raise self._error(name, value, source)

    def _check_bytes(self, name: str, value: Any, source: str | None) -> int:
        try:
            number = parse_bytes(value) if isinstance(value, str) else value
        except ValueError:
            raise self._error(name, value, source) from None
        if isinstance(number, bool) or not isinstance(number, numbers.Integral) or number < 1:
            raise self._error(name, value, source)
        return int(number)

    def _check_list(self, name: str, value: Any, source: str | None) -> str | tuple[Any, ...]:
        if isinstance(value, str):
            if value in self.choices:
                return value
            value = [word.strip() for word in value.split(",")]
            if len(value) < 2 and not value[0].isdigit():  # rather a slip than a list of one name
                raise self._error(name, value[0], source)
            if all(word.isdigit() for word in value):
                value = [int(word) for word in value]
        if not isinstance(value, Sequence) or not value:
            raise self._error(name, value, source)
        counts = [
            isinstance(item, numbers.Integral) and not isinstance(item, bool) for item in value
        ]
        if all(counts):
            return tuple(int(item) for item in value)
        if any(counts) or not all(isinstance(item, str) and item for item in value):
            raise self._error(name, value, source)
        return tuple(value)

    def _check_number(self, name: str, value: Any, source: str | None) -> int | float:
        number: int | float
        if self.base == "int" and isinstance(value, numbers.Integral):
            number = int(value)
        elif self.base == "float" and isinstance(value, numbers.Real):
            number = float(value)
        else:
            raise self._error(name, value, source)
        if isinstance(value, bool):
            raise self._error(name, value, source)
        if self.also is not None and number == self.also:
            return number
        too_small = self.minimum is not None and (
            number <= self.minimum if self.exclusive else number < self.minimum
        )
        too_large = self.maximum is not None and number > self.maximum
        if too_small or too_large or number != number or number in (float("inf"), float("-inf")):
            raise self._error(name, value, source)
        return number

    def _check_text(self, name: str, value: Any, source: str | None) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise self._error(name, value, source)
        if self.choices:
            if value not in self.choices:
                raise self._error(name, value, source)
        elif self.base == "path":
            return os.path.expanduser(value)
        elif self.base == "devices":
            try:
                return str(DeviceSpec.parse(value))
            except ValueError as error:
                raise ConfigError(
                    explain(
                        str(error),
                        received=short(value),
                        source=source,
                        fix="Such as devices=cpu:4",
                    )
                ) from None
        return value

    def _error(self, name: str, value: Any, source: str | None) -> ConfigError:
        fix = f"Set `{name}` to {self.describe()}"
        if self.choices and isinstance(value, str):
            near = nearest(value, self.choices)
            fix = f"Did you mean {near!r}?" if near else fix
        return ConfigError(
            explain(
                f"`{name}` must be {self.describe()}",
                received=f"{name}={short(value)} ({type(value).__name__})",
                source=source,
                fix=fix,
            )
        )


def setting(default: Any, kind: Kind, help: str) -> Any:
    """A dataclass field with its Kind and help text."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help})


def kind_of(field: dataclasses.Field[Any]) -> Kind | None:
    """The Kind of a dataclass field made by `setting`, or None for any other field."""
    return field.metadata.get("kind")


def plain_keys(mapping: Mapping[Any, Any], source: str | None) -> Sequence[str]:
    """The mapping's keys, checked to be strings.

    Raises:
        ConfigError: a key is not a string.
    """
    for key in mapping:
        if not isinstance(key, str):
            raise ConfigError(
                explain(
                    "The names of settings must be strings",
                    received=short(key),
                    source=source,
                    fix="Write `name: value`",
                )
            )
    return list(mapping)
