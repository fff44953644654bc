"""A partition as text: the table that `print(partition)` and `tfdist plan` show."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from tfdist.config.sizes import format_bytes

if TYPE_CHECKING:
    from tfdist.pipeline.partition import Partition, StagePlan

__all__ = ["describe"]

_WIDTH = 110


def describe(partition: Partition) -> str:
    """The table of the parts, what crosses the cuts, ties, and the predicted times.

    Args:
        partition: the partition.

    Returns:
        Several lines of plain text.
    """
    last = "\n".join([*_tie_lines(partition), *_time_lines(partition)])
    return "\n\n".join(
        [partition.title(), _stage_table(partition), _crossing_table(partition), last]
    )


def _stage_table(partition: Partition) -> str:
    timed = partition.stages[0].forward_seconds is not None
    chunked = partition.schedule.chunks > 1
    columns = ["part", "on stage"] if chunked else ["stage"]
    columns += ["operations", "parameters", "GFLOPs", "activations", "memory"]
    columns += ["forward ms", "backward ms"] if timed else []
    rows = []
    for plan in partition.stages:
        row = [str(plan.part), str(plan.stage)] if chunked else [str(plan.part)]
        row += [
            _span(plan),
            f"{plan.parameters:,}",
            f"{plan.flops / 1e9:.3g}",
            format_bytes(plan.activation_bytes),
            format_bytes(plan.memory_bytes),
        ]
        if plan.forward_seconds is not None and plan.backward_seconds is not None:
            row += [f"{1e3 * plan.forward_seconds:.2f}", f"{1e3 * plan.backward_seconds:.2f}"]
        rows.append(row)
    return _table(columns, rows, left=columns.index("operations"))


def _crossing_table(partition: Partition) -> str:
    rows = []
    for cut in range(1, len(partition.stages)):
        for crossing in partition.crossing(cut):
            shape = "x".join(map(str, crossing.shape))
            rows.append(
                [
                    f"{cut - 1} | {cut}",
                    crossing.name,
                    f"{shape} {crossing.dtype}",
                    format_bytes(crossing.bytes),
                ]
            )
    if not rows:
        return "Nothing crosses a cut."
    return _table(["cut", "tensor of a microbatch", "shape", "bytes"], rows, left=1)


def _tie_lines(partition: Partition) -> list[str]:
    return [
        f"Tied: {', '.join(tie.weights)} ({format_bytes(tie.bytes)}) on "
        f"{' and '.join(map(str, tie.parts))}; {tie.owner} updates them."
        for tie in partition.ties
    ]


def _time_lines(partition: Partition) -> list[str]:
    timeline = partition.simulate()
    costs = partition.costs
    sources = {cost.flops_source for cost in costs.operations if cost.flops}
    lines = [
        "Activations: kept for one microbatch. Memory: weights, gradients, optimizer slots, "
        "activations.",
        f"FLOPs of a microbatch's forward pass by {' and '.join(sorted(sources)) or 'nothing'}.",
        f"Bubble: {partition.bubble:.1%} predicted for equal stages, {timeline.bubble:.1%} with "
        "the stages as they are.",
    ]
    if costs.device is not None:
        whole = sum(timeline.busy)
        lines.append(
            f"Step: {1e3 * timeline.makespan:.2f} ms simulated without transfers, against "
            f"{1e3 * whole:.2f} ms on one device ({whole / timeline.makespan:.2f}x), timed on "
            f"{costs.device}."
            if timeline.makespan
            else f"Too fast to be timed on {costs.device}."
        )
    return lines


def _span(plan: StagePlan) -> str:
    names = plan.operations
    if len(names) == 1:
        return names[0]
    return f"{names[0]} ... {names[-1]} ({len(names)})"


def _table(columns: list[str], rows: list[list[str]], left: int) -> str:
    """Draws a table without colours; one column is flush left."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        justify: Any = "left" if index == left else "right"
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(
        file=text, width=_WIDTH, color_system=None, markup=False, highlight=False, emoji=False
    ).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")
