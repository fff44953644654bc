"""What a check says: a finding, and the check that made it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfdist.doctor.facts import Facts

__all__ = ["Check", "Finding"]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Attributes:
        problem: what is wrong, with the value, in a sentence.
        fix: what to do, in a sentence.
        severity: "error" when a job can't work so, "warning" when it may be slow or fail later.
        check: name of the check that found it.
    """

    problem: str
    fix: str
    severity: str = "error"
    check: str = ""


@dataclass(frozen=True)
class Check:
    """One line of the table of checks.

    Attributes:
        name: such as "open-files".
        function: returns what is wrong by the facts, or None.
    """

    name: str
    function: Callable[[Facts], Finding | None]
