"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

__all__ = ["format_bytes", "parse_bytes"]

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}ib"] = 1024**_power
    _UNITS[f"{_letter}b"] = 1000**_power

_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def parse_bytes(text: str) -> int:
    """Reads a number of bytes, such as 512MB (10**6), 16GiB (2**30), 16G (the same) or 1000.

    Raises:
        ValueError: the text is no size.
    """
    match = _PATTERN.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is no number of bytes, such as 512MB or 16GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def format_bytes(number: float) -> str:
    """Writes a number of bytes with three digits or so, in units of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 999.5:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB" if number < 1000 else f"{number:,.0f} TB"
