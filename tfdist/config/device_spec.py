"""The grammar of the `devices` setting, as pure data: read without TensorFlow."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["GRAMMAR", "DeviceSpec"]

GRAMMAR = "auto | cpu | cpu:N (N logical CPU devices) | gpu (all) | gpu:I,J,... (these indices)"

_PATTERN = re.compile(r"(?P<kind>auto|cpu|gpu)(?::(?P<numbers>\d+(?:,\d+)*))?")


@dataclass(frozen=True)
class DeviceSpec:
    """What the `devices` setting asks for.

    Attributes:
        kind: "auto", "cpu" or "gpu".
        cpus: how many logical CPU devices to make; None leaves TensorFlow's own.
        gpus: indices of the GPUs to use; None means all that are visible.
    """

    kind: str
    cpus: int | None = None
    gpus: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> DeviceSpec:
        """Reads the setting.

        Args:
            text: the setting, see `GRAMMAR`.

        Returns:
            The parsed specification.

        Raises:
            ValueError: the text doesn't follow the grammar; the message is a full sentence that
                names the reason, without the value.
        """
        match = _PATTERN.fullmatch(text.strip().lower().replace(" ", ""))
        if match is None:
            raise ValueError(f"`devices` must be one of: {GRAMMAR}")
        kind, numbers = match["kind"], match["numbers"]
        if numbers is None:
            return cls(kind)
        values = tuple(int(number) for number in numbers.split(","))
        if kind == "auto":
            raise ValueError("`devices=auto` takes no numbers")
        if kind == "gpu":
            if len(set(values)) != len(values):
                raise ValueError("`devices` must name each GPU once")
            return cls(kind, gpus=values)
        if len(values) != 1:
            raise ValueError("`devices=cpu:N` takes one number, the count of logical CPU devices")
        if not 1 <= values[0] <= 1024:
            raise ValueError("The count of logical CPU devices must be between 1 and 1024")
        return cls(kind, cpus=values[0])

    def __str__(self) -> str:
        """The setting in its normal form."""
        if self.cpus is not None:
            return f"cpu:{self.cpus}"
        if self.gpus is not None:
            return "gpu:" + ",".join(map(str, self.gpus))
        return self.kind
