"""Strategy names, and how each is built from a Config. Listing them does not import TensorFlow."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from tfdist.errors import ConfigError, UnsupportedError, explain

if TYPE_CHECKING:
    from tfdist.cluster import Cluster
    from tfdist.config import Config

__all__ = ["NAMES", "PLANNED", "available", "build", "check_name"]

# Name -> "module:function" that builds the strategy from (config, cluster).
_BUILDERS = {
    "single": "tfdist.strategies.builders:single",
    "mirrored": "tfdist.strategies.builders:mirrored",
    "multi_worker": "tfdist.strategies.builders:multi_worker",
    "parameter_server": "tfdist.strategies.builders:parameter_server",
    "tpu": "tfdist.strategies.builders:tpu",
}

# Names that the design reserves and this version does not have.
PLANNED = ("pipeline", "hybrid")

NAMES = ("auto", *_BUILDERS, *PLANNED)


def available() -> tuple[str, ...]:
    """Returns the names that `build` accepts."""
    return tuple(_BUILDERS)


def check_name(name: str, source: str | None = None) -> None:
    """Raises unless `name` is a strategy of this version.

    Args:
        name: the strategy's name, or "auto".
        source: where the name came from, for the message.

    Raises:
        ConfigError: if no strategy has this name.
        UnsupportedError: if the name is reserved for a later version.
    """
    known = ", ".join(("auto", *_BUILDERS))
    if name in PLANNED:
        raise UnsupportedError(
            explain(
                f"Strategy '{name}' is not part of this version",
                received=f"strategy={name}",
                source=source,
                fix=f"Use one of: {known}",
            )
        )
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"Did you mean '{close[0]}'? " if close else ""
        raise ConfigError(
            explain(
                f"Unknown strategy '{name}'",
                received=f"strategy={name}",
                source=source,
                fix=f"{hint}Use one of: {known}",
            )
        )


def build(name: str, config: Config, cluster: Cluster) -> Any:
    """Builds the strategy called `name`.

    Args:
        name: one of `available()`; "auto" has been decided by the caller.
        config: the settings.
        cluster: the cluster of this process.

    Returns:
        A `tf.distribute.Strategy` of tfdist's.

    Raises:
        ConfigError: if the name is unknown.
        UnsupportedError: if the name is reserved for a later version.
    """
    check_name(name)
    module, _, function = _BUILDERS[name].partition(":")
    return getattr(importlib.import_module(module), function)(config, cluster)
