"""What a task does that is not the chief: it serves until the job is over."""

from __future__ import annotations

from tfdist.serving import take_role

__all__ = ["take_role"]
