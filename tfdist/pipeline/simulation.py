"""Runs a schedule on paper: when each step begins and ends, who idles, how much is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.errors import PartitionError, explain
from tfdist.pipeline.schedule import Schedule, Step, needs

__all__ = ["Box", "PartTimes", "Timeline", "simulate"]


@dataclass(frozen=True)
class PartTimes:
    """What one microbatch costs on one part of the model.

    Attributes:
        forward: seconds of a forward step.
        backward: seconds of a backward step.
        transfer: seconds until the part's output is on the next part's device; the gradient takes
            as long on the way back.
        activation_bytes: what is kept from the forward to the backward step.
        input_bytes: the part of it that the part's inputs take: all that is kept when the backward
            step computes the forward step again.
    """

    forward: float
    backward: float
    transfer: float = 0.0
    activation_bytes: int = 0
    input_bytes: int = 0


@dataclass(frozen=True)
class Box:
    """A step on its stage, from begin to end in seconds; `recomputes` its forward step first."""

    step: Step
    stage: int
    begin: float
    end: float
    recomputes: bool = False


@dataclass(frozen=True)
class Timeline:
    """A schedule with times.

    Attributes:
        schedule: the schedule.
        boxes: every step, by its begin.
        busy: seconds that each stage works.
        peak_activations: largest number of microbatches (times chunks) that each stage keeps.
        peak_bytes: largest number of bytes of activations that each stage keeps.
    """

    schedule: Schedule
    boxes: tuple[Box, ...]
    busy: tuple[float, ...]
    peak_activations: tuple[int, ...]
    peak_bytes: tuple[int, ...]

    @property
    def makespan(self) -> float:
        """Seconds from the first step's begin to the last step's end."""
        return max(box.end for box in self.boxes)

    @property
    def bubble(self) -> float:
        """The share of the stages' time in which they idle."""
        makespan = self.makespan
        return 1.0 - sum(self.busy) / (makespan * len(self.busy)) if makespan else 0.0


def simulate(schedule: Schedule, times: Sequence[PartTimes], recompute: str = "none") -> Timeline:
    """Runs a schedule on paper.

    A stage takes its steps in the schedule's order, each as soon as the stage is free and the
    results that it needs have arrived. Transfers take no time of the stages.

    Args:
        schedule: the schedule.
        times: for each part of the model.
        recompute: see `Schedule.recomputed`.

    Returns:
        The timeline.

    Raises:
        PartitionError: the schedule can't be run, or there are not as many times as parts.
    """
    if len(times) != schedule.parts:
        raise PartitionError(
            explain(
                "A schedule needs the times of each part of the model",
                received=f"{len(times)} times for {schedule.parts} parts",
                fix="Give one for each of stages x chunks",
            )
        )
    schedule.check()
    again = schedule.recomputed(recompute)
    ends: dict[Step, float] = {}
    free = [0.0] * schedule.stages
    busy = [0.0] * schedule.stages
    ahead = [0] * schedule.stages
    boxes: list[Box] = []
    while len(ends) < sum(map(len, schedule.orders)):
        for stage, order in enumerate(schedule.orders):
            while ahead[stage] < len(order):
                step = order[ahead[stage]]
                if any(other not in ends for other in needs(step, schedule.parts)):
                    break
                arrivals = [_arrival(o, step, ends[o], times) for o in needs(step, schedule.parts)]
                begin = max([free[stage], *arrivals])
                seconds = _duration(step, times[step.part], step in again)
                free[stage] = ends[step] = begin + seconds
                busy[stage] += seconds
                boxes.append(Box(step, stage, begin, begin + seconds, step in again))
                ahead[stage] += 1
    return Timeline(
        schedule,
        tuple(sorted(boxes, key=lambda box: (box.begin, box.stage))),
        tuple(busy),
        schedule.kept(),
        tuple(_peak_bytes(order, times, again) for order in schedule.orders),
    )


def _arrival(source: Step, step: Step, end: float, times: Sequence[PartTimes]) -> float:
    """When a result is where it is needed: it travels between parts, not within one."""
    if source.part == step.part:
        return end
    return end + times[min(source.part, step.part)].transfer


def _duration(step: Step, times: PartTimes, recomputes: bool) -> float:
    if step.kind == "F":
        return times.forward
    return times.backward + (times.forward if recomputes else 0.0)


def _peak_bytes(order: Sequence[Step], times: Sequence[PartTimes], again: frozenset[Step]) -> int:
    """The most that a stage keeps; a recomputing step has its activations while it runs."""
    now = peak = 0
    for step in order:
        cost = times[step.part]
        light = step._replace(kind="B") in again
        size = cost.input_bytes if light else cost.activation_bytes
        if step.kind == "F":
            now += size
            # While it runs, even a forward step that keeps nothing has a layer's output or two;
            # what counts is what waits.
            peak = max(peak, now)
        else:
            peak = max(peak, now - size + cost.activation_bytes)
            now -= size
    return peak
