"""Turns the seconds of many turns into a table: medians, spread, and ratios taken turn by turn."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

# Of others' work: read before any contender starts.
_LOAD_BEFORE = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0
_PACKAGES = ("tensorflow", "keras", "torch")


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Returns our throughput over theirs for each round: their seconds over ours."""
    return [b / a for a, b in zip(ours, theirs, strict=True)]


def machine() -> dict[str, str | int | float]:
    """Returns what a reader needs to place the figures; no names, no paths."""
    installed = {}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    )
    return {
        "cores": cores,
        "processor": platform.machine(),
        "python": platform.python_version(),
        "load_before": _LOAD_BEFORE,
        **installed,
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    return "\n".join(
        [line(header), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)]
    )


def throughput(images: int, seconds: Sequence[float]) -> str:
    """Returns "median (lower quartile - upper quartile)" in images per second."""
    low, middle, high = quartiles([images / s for s in seconds])
    return f"{middle:,.0f} ({low:,.0f}-{high:,.0f})"


def save(path: Path | None, caption: str, shown: str, figures: Mapping[str, object]) -> None:
    """Writes the table and the figures behind it, with the machine, when a path is given."""
    if path is not None:
        content = {"machine": machine(), "caption": caption, "table": shown.splitlines(), **figures}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
