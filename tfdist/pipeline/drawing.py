"""Draws a timeline as a Gantt chart: a row for each stage, a box for each step.

Forward steps are blue and backward steps green, darker where a chunk comes later; the number is the
microbatch's. What is white is the bubble. SVG is written here; PNG needs matplotlib
(`pip install 'tfdist[plot]'`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tfdist.errors import PartitionError, explain
from tfdist.pipeline.simulation import Box, Timeline

__all__ = ["draw", "svg"]

_ROW, _BAR, _LEFT, _TOP, _CHART = 34, 26, 70, 44, 900
_FORWARD = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5")
_BACKWARD = ("#a1d99b", "#74c476", "#41ab5d", "#238b45")
_LETTER = 8  # a digit's width: a box that is narrower than its number has none


@dataclass(frozen=True)
class _Bar:
    """A box on paper, in units of the chart."""

    row: int
    left: float
    width: float
    colour: str
    text: str
    title: str


def draw(timeline: Timeline, path: str | os.PathLike[str], title: str = "") -> None:
    """Draws a timeline into a file.

    Args:
        timeline: what `simulate` returned.
        path: ends in .svg or .png.
        title: the line above the chart.

    Raises:
        PartitionError: the path ends otherwise, can't be written, or matplotlib is missing.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in (".svg", ".png"):
        raise PartitionError(
            explain(
                "The schedule is drawn into an .svg or .png file",
                received=str(path),
                fix="Use a path such as schedule.svg",
            )
        )
    try:
        if kind == ".svg":
            target.write_text(svg(timeline, title), encoding="utf-8")
        else:
            _png(timeline, target, title)
    except OSError as error:
        raise PartitionError(
            explain(
                "The picture can't be written",
                received=f"{path}: {error.strerror}",
                fix="Choose another path",
            )
        ) from None


def svg(timeline: Timeline, title: str = "") -> str:
    """The chart as the text of an SVG file."""
    stages = timeline.schedule.stages
    height = _TOP + stages * _ROW + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _CHART + 20}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="24" font-size="14">{escape(title)}</text>',
    ]
    for stage in range(stages):
        y = _TOP + stage * _ROW
        parts.append(f'<text x="10" y="{y + 18}">stage {stage}</text>')
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{_CHART}" height="{_BAR}" fill="none" '
            'stroke="#dddddd"/>'
        )
    for bar in _bars(timeline):
        x, y = _LEFT + bar.left, _TOP + bar.row * _ROW
        parts.append(
            f'<rect x="{x:.2f}" y="{y}" width="{bar.width:.2f}" height="{_BAR}" '
            f'fill="{bar.colour}" stroke="white" stroke-width="0.5">'
            f"<title>{escape(bar.title)}</title></rect>"
        )
        if bar.text:
            parts.append(
                f'<text x="{x + bar.width / 2:.2f}" y="{y + 17}" text-anchor="middle" '
                f'pointer-events="none">{bar.text}</text>'
            )
    parts.append(f'<text x="{_LEFT}" y="{height - 12}">{escape(_caption(timeline))}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _png(timeline: Timeline, path: Path, title: str) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PartitionError(
            explain(
                "Drawing a PNG needs matplotlib, which is not installed",
                received=str(path),
                fix="pip install 'tfdist[plot]', or draw an .svg",
            )
        ) from None
    stages = timeline.schedule.stages
    figure = Figure(figsize=(10, 1.2 + 0.4 * stages), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for bar in _bars(timeline):
        axes.barh(bar.row, bar.width, 0.8, bar.left, color=bar.colour, edgecolor="white")
        if bar.text:
            axes.text(bar.left + bar.width / 2, bar.row, bar.text, ha="center", va="center")
    axes.set_yticks(range(stages), [f"stage {stage}" for stage in range(stages)])
    axes.set_ylim(stages - 0.5, -0.5)
    axes.set_xlim(0, _CHART)
    axes.set_xticks([])
    axes.set_xlabel(_caption(timeline))
    axes.set_title(title, fontsize="medium")
    figure.savefig(path, dpi=150)


def _bars(timeline: Timeline) -> list[_Bar]:
    scale = _CHART / (timeline.makespan or 1.0)
    return [_bar(timeline, box, scale) for box in timeline.boxes]


def _bar(timeline: Timeline, box: Box, scale: float) -> _Bar:
    step = box.step
    chunk = step.part // timeline.schedule.stages
    shades = _FORWARD if step.kind == "F" else _BACKWARD
    width = (box.end - box.begin) * scale
    number = str(step.microbatch)
    again = " and its forward step again" if box.recomputes else ""
    return _Bar(
        box.stage,
        box.begin * scale,
        width,
        shades[chunk % len(shades)],
        number if width >= _LETTER * len(number) + 2 else "",
        f"{step}{again}: {1e3 * box.begin:.3f} to {1e3 * box.end:.3f} ms",
    )


def _caption(timeline: Timeline) -> str:
    return (
        f"forward blue, backward green; {1e3 * timeline.makespan:.3g} ms, "
        f"bubble {timeline.bubble:.1%}"
    )
