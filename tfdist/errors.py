"""The errors that tfdist raises for its user's mistakes.

Every message follows one rule: what is wrong, the value received, where it came from, and what to do.
Each kind also subclasses the built-in error that a caller would naturally catch.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ClusterError",
    "ConfigError",
    "DataError",
    "LaunchError",
    "LossError",
    "PartitionError",
    "SaveError",
    "ScopeError",
    "TfdistError",
    "UnsupportedError",
    "explain",
]


class TfdistError(Exception):
    """Base of every error that tfdist raises on purpose."""


class ConfigError(TfdistError, ValueError):
    """A setting has a wrong value, or two settings contradict each other."""


class ClusterError(TfdistError, ValueError):
    """The cluster's description is wrong, or a task of it can't be reached.

    Attributes:
        missing: ranks of the workers that did not take part in an agreement, where that is why.
    """

    missing: tuple[int, ...] = ()


class PartitionError(TfdistError, ValueError):
    """A model can't be split into the requested stages."""


class DataError(TfdistError, ValueError):
    """The training data does not fit the cluster, or can't be found."""


class LossError(TfdistError, ValueError):
    """A loss can't be made independent of the number of replicas."""


class SaveError(TfdistError, RuntimeError):
    """A model or checkpoint can't be written or read as asked."""


class ScopeError(TfdistError, RuntimeError):
    """Something was created under another strategy than the one that uses it."""


class UnsupportedError(TfdistError, NotImplementedError):
    """A combination that can't work, refused before any training step."""


class LaunchError(TfdistError, RuntimeError):
    """The launcher can't start the processes."""


def explain(problem: str, *, received: Any = None, source: str | None = None, fix: str) -> str:
    """Builds an error message in tfdist's order: problem, value, origin, remedy.

    Args:
        problem: the rule that is broken, as a sentence.
        received: the offending value; left out when None.
        source: where the value came from, such as "TF_CONFIG" or "--strategy".
        fix: what the user can do.

    Returns:
        The message, on one or two lines.
    """
    parts = [problem.rstrip(".") + "."]
    if received is not None:
        parts.append(f"Received: {received}" + (f" (from {source})." if source else "."))
    elif source:
        parts.append(f"(From {source}.)")
    parts.append(fix.rstrip(".") + ".")
    return " ".join(parts)
