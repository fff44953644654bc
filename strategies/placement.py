"""Which parameter server a variable is born on."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["Placement"]


class Placement:
    """Puts each variable on the parameter server that holds the fewest bytes so far.

    TensorFlow deals them out in turn by number, so that one server can end up with all the big ones
    (tensorflow issue 45291). Slots of an optimizer go beside their variable either way, and count.

    Attributes:
        bytes: what each parameter server holds, in bytes.
        variables: how many variables each holds.
    """

    def __init__(self, num_ps: int, by_bytes: bool) -> None:
        """Starts with empty servers.

        Args:
            num_ps: how many there are.
            by_bytes: whether to balance bytes; otherwise in turn, as TensorFlow does.
        """
        self.bytes = [0] * num_ps
        self.variables = [0] * num_ps
        self._by_bytes = by_bytes

    def install(self, extended: Any) -> None:
        """Takes over where variables go.

        Stands in for a public hook of `ParameterServerStrategy`, which has a partitioner only. It
        puts the next variable on server `_variable_count % num_ps`.

        Args:
            extended: the strategy's `extended`.
        """
        create = extended._create_variable

        def balanced(next_creator: Any, **kwargs: Any) -> Any:
            if self._by_bytes and "colocate_with" not in kwargs:
                extended._variable_count = self.bytes.index(min(self.bytes))
            variable = create(next_creator, **kwargs)
            self._count(variable)
            return variable

        extended._create_variable = balanced

    def describe(self) -> str:
        """One line: what each parameter server holds."""
        parts = [
            f"ps {index}: {count} variables, {_readable(size)}"
            for index, (count, size) in enumerate(zip(self.variables, self.bytes))
        ]
        return "; ".join(parts)

    def _count(self, variable: Any) -> None:
        found = re.search(r"/job:ps/.*task:(\d+)", variable.device or "")
        if found is None:
            return
        index = int(found[1])
        size = variable.dtype.size * (variable.shape.num_elements() or 0)
        self.bytes[index] += size
        self.variables[index] += 1


def _readable(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
