"""How the bridge replaces functions of Keras: a table of repairs, installed once.

A repair names the upstream behaviour that it stands in for. Its replacement is called with the
original function first, and hands over to it whenever a model or optimizer is not tfdist's.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Repair", "apply_repairs", "installed"]

_INSTALLED: dict[tuple[str, str], Repair] = {}


@dataclasses.dataclass(frozen=True)
class Repair:
    """One replaced function.

    Attributes:
        owner: the module, or "module:Class", that holds the function.
        name: the function's name there.
        upstream: what Keras does without the repair, with the issue where there is one.
        replacement: called as `replacement(original, *args, **kwargs)`.
    """

    owner: str
    name: str
    upstream: str
    replacement: Callable[..., Any]


def apply_repairs(repairs: Iterable[Repair]) -> None:
    """Installs repairs that are not installed yet.

    Args:
        repairs: the table of one bridge module.

    Raises:
        AttributeError: if Keras no longer has a function that a repair replaces.
    """
    for repair in repairs:
        key = (repair.owner, repair.name)
        if key in _INSTALLED:
            continue
        module_name, _, class_name = repair.owner.partition(":")
        holder = importlib.import_module(module_name)
        if class_name:
            holder = getattr(holder, class_name)
        original = getattr(holder, repair.name)
        setattr(holder, repair.name, _wrap(original, repair.replacement))
        _INSTALLED[key] = repair


def installed() -> tuple[Repair, ...]:
    """Returns every installed repair, in order of installation."""
    return tuple(_INSTALLED.values())


def _wrap(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def repaired(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    repaired._tfdist_original = original  # type: ignore[attr-defined]
    return repaired
