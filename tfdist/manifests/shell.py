"""Bash that says what it was meant to say, whatever is in the values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from tfdist.manifests.job import refuse

__all__ = ["check_directive", "exports", "words"]

_DIRECTIVE = re.compile(r"[\w.:/,=+%@*\[\]()&|~-]+")


def exports(variables: Mapping[str, str]) -> list[str]:
    """A line of bash for each variable."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def words(command: Iterable[str]) -> str:
    """A command as bash reads it back."""
    return shlex.join(command)


def check_directive(value: str, option: str) -> str:
    """Checks a value that a scheduler reads from a comment, where nothing can be quoted.

    Raises:
        ConfigError: it has a character that would end it.
    """
    if not _DIRECTIVE.fullmatch(value):
        raise refuse(
            f"{option} can hold no space, quote or line break",
            repr(value),
            option,
            "Give it on sbatch's command line instead, which goes before the script's",
        )
    return value
