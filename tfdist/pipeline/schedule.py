"""The order in which the stages of a pipeline work, as data: printed, checked, and run by an executor.

S stages (devices), M microbatches, P parts of the model. A part is what one forward step computes.
Part p lies on stage p mod S; gpipe and 1f1b have one part a stage, interleaved has several
("chunks"). `2F0` is the forward step of part 2 for microbatch 0, `2B0` its backward step.

S = 3, M = 4, a backward step as long as a forward step (time runs to the right):

    gpipe     stage 0  0F0 0F1 0F2 0F3  .   .   .   .  0B3 0B2 0B1 0B0
              stage 1   .  1F0 1F1 1F2 1F3  .   .  1B3 1B2 1B1 1B0  .
              stage 2   .   .  2F0 2F1 2F2 2F3 2B3 2B2 2B1 2B0  .   .

    1f1b      stage 0  0F0 0F1 0F2  .   .  0B0 0F3 0B1  .  0B2  .  0B3
              stage 1   .  1F0 1F1  .  1B0 1F2 1B1 1F3 1B2  .  1B3  .
              stage 2   .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   .

Both idle for (S-1) / (M+S-1) of the time; gpipe keeps the activations of all M microbatches, 1f1b of
at most S - s on stage s.

Sources: GPipe (Huang et al. 2018, arXiv 1811.06965); 1f1b is PipeDream-Flush (Narayanan et al. 2020,
arXiv 2006.09503); interleaved 1f1b (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from tfdist.config.fields import did_you_mean
from tfdist.errors import PartitionError, explain

__all__ = ["RECOMPUTE", "SCHEDULES", "Schedule", "Step", "make_schedule", "predicted_bubble"]

RECOMPUTE = ("none", "full", "except_last")


class Step(NamedTuple):
    """One forward or backward computation of a part of the model for one microbatch."""

    kind: Literal["F", "B"]
    microbatch: int
    part: int

    def __str__(self) -> str:
        """Such as 2F0: part 2, forward, microbatch 0."""
        return f"{self.part}{self.kind}{self.microbatch}"


def needs(step: Step, parts: int) -> Iterator[Step]:
    """Yields the steps whose result a step takes.

    Args:
        step: the step.
        parts: number of parts of the model, P.
    """
    if step.kind == "F":
        if step.part > 0:
            yield step._replace(part=step.part - 1)
        return
    yield step._replace(kind="F")
    if step.part < parts - 1:
        yield step._replace(part=step.part + 1)


@dataclass(frozen=True)
class Schedule:
    """Each stage's steps in its order.

    Attributes:
        name: "gpipe", "1f1b", "interleaved", or one's own.
        microbatches: M.
        chunks: parts of the model on each stage.
        orders: the steps of each stage, in the order in which it takes them.
    """

    name: str
    microbatches: int
    orders: tuple[tuple[Step, ...], ...]
    chunks: int = 1

    @property
    def stages(self) -> int:
        """S, the number of devices."""
        return len(self.orders)

    @property
    def parts(self) -> int:
        """P, the number of parts that the model is cut into."""
        return self.stages * self.chunks

    def stage_of(self, part: int) -> int:
        """The stage that a part lies on."""
        return part % self.stages

    def __str__(self) -> str:
        """A line for each stage."""
        width = len(str(self.stages - 1))
        return "\n".join(
            f"stage {stage:>{width}}: {' '.join(map(str, order))}"
            for stage, order in enumerate(self.orders)
        )

    def grid(self) -> str:
        """A picture in which every step takes one column: see the module's drawing.

        Raises:
            PartitionError: the schedule can't be run: see `check`.
        """
        return _grid(self, self._clock())

    def check(self) -> None:
        """Checks that the schedule can be run and computes every microbatch.

        Raises:
            PartitionError: a step is missing, twice, unknown or on the wrong stage; a backward step
                comes before its forward step; or the stages wait for each other for ever.
        """
        self._check_steps()
        self._check_own_order()
        self._clock()

    def kept(self) -> tuple[int, ...]:
        """The largest number of activations that each stage keeps at a time.

        One is kept from the forward step of a part for a microbatch to its backward step.
        """
        return tuple(max(_running(order), default=0) for order in self.orders)

    def recomputed(self, recompute: str) -> frozenset[Step]:
        """The backward steps that compute their forward step again, because it was not kept.

        Args:
            recompute: "none"; "full", for all steps; or "except_last", for all but those that come
                directly after their own forward step, whose activations are still there. That is
                the last microbatch of gpipe, as in torchgpipe (arXiv 2004.09910, section 3.1), and
                every microbatch on the last stage of 1f1b.

        Raises:
            PartitionError: the word is unknown.
        """
        _choose("recompute", recompute, RECOMPUTE)
        if recompute == "none":
            return frozenset()
        found = {step for order in self.orders for step in order if step.kind == "B"}
        if recompute == "except_last":
            for order in self.orders:
                for before, step in pairwise(order):
                    if step.kind == "B" and before == step._replace(kind="F"):
                        found.discard(step)
        return frozenset(found)

    def _check_steps(self) -> None:
        """Each step must be there once, on its stage."""
        seen: set[Step] = set()
        for stage, order in enumerate(self.orders):
            for step in order:
                known = (
                    step.kind in ("F", "B")
                    and 0 <= step.microbatch < self.microbatches
                    and 0 <= step.part < self.parts
                )
                if not known:
                    raise self._error(f"stage {stage} has the unknown step {step}")
                if self.stage_of(step.part) != stage:
                    raise self._error(f"step {step} belongs to stage {self.stage_of(step.part)}")
                if step in seen:
                    raise self._error(f"step {step} is there twice")
                seen.add(step)
        for part in range(self.parts):
            for microbatch in range(self.microbatches):
                for kind in ("F", "B"):
                    step = Step(kind, microbatch, part)  # type: ignore[arg-type]
                    if step not in seen:
                        raise self._error(f"step {step} is missing")

    def _check_own_order(self) -> None:
        for order in self.orders:
            position = {step: index for index, step in enumerate(order)}
            for step in order:
                if step.kind == "B" and position[step._replace(kind="F")] > position[step]:
                    raise self._error(f"step {step} comes before its forward step")

    def _clock(self) -> Mapping[Step, int]:
        """The earliest tick of each step, if each takes one tick.

        Raises:
            PartitionError: the stages wait for each other for ever.
        """
        done: dict[Step, int] = {}
        ahead = [0] * self.stages
        tick = 0
        while len(done) < sum(map(len, self.orders)):
            now = []
            for stage, order in enumerate(self.orders):
                if ahead[stage] < len(order):
                    step = order[ahead[stage]]
                    if all(other in done for other in needs(step, self.parts)):
                        now.append((stage, step))
            if not now:
                raise self._deadlock(done, ahead)
            for stage, step in now:
                done[step] = tick
                ahead[stage] += 1
            tick += 1
        return done

    def _deadlock(self, done: Mapping[Step, int], ahead: Sequence[int]) -> PartitionError:
        waits = []
        for order, position in zip(self.orders, ahead):
            if position < len(order):
                missing = [str(s) for s in needs(order[position], self.parts) if s not in done]
                waits.append(f"{order[position]} waits for {' and '.join(missing)}")
        return self._error(
            "the stages wait for each other: " + "; ".join(waits) + "\n" + _grid(self, done) + "\n"
        )

    def _error(self, problem: str) -> PartitionError:
        return PartitionError(
            explain(
                f"The schedule {self.name!r} can't be run: {problem}",
                received=f"stages={self.stages}, microbatches={self.microbatches}, "
                f"chunks={self.chunks}",
                fix="Every microbatch needs one forward and one backward step on every part, "
                "in an order that the other stages' results allow",
            )
        )


def make_schedule(name: str, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Makes one of the known schedules.

    Args:
        name: "gpipe", "1f1b" or "interleaved".
        stages: S, devices.
        microbatches: M.
        chunks: parts of the model on each stage; more than one for "interleaved" only.

    Returns:
        The schedule, checked.

    Raises:
        PartitionError: the name is unknown, or the numbers don't go together.
    """
    _choose("schedule", name, SCHEDULES)
    for what, number in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise PartitionError(
                explain(
                    f"`{what}` must be an integer >= 1",
                    received=f"{what}={number!r}",
                    fix=f"Set `{what}` to 1 or more",
                )
            )
    if name != "interleaved" and chunks != 1:
        raise PartitionError(
            explain(
                "Only the interleaved schedule has several chunks on a stage",
                received=f"schedule={name}, chunks={chunks}",
                fix="Use schedule='interleaved', or chunks=1",
            )
        )
    if name == "interleaved" and microbatches % stages:
        raise PartitionError(
            explain(
                "The interleaved schedule needs a multiple of `stages` as `microbatches`",
                received=f"stages={stages}, microbatches={microbatches}",
                fix=f"Use microbatches={-(-microbatches // stages) * stages}, or schedule='1f1b'",
            )
        )
    orders = tuple(
        tuple(SCHEDULES[name](stage, stages, microbatches, chunks)) for stage in range(stages)
    )
    schedule = Schedule(name, microbatches, orders, chunks)
    schedule.check()
    return schedule


def predicted_bubble(stages: int, microbatches: int, chunks: int = 1) -> float:
    """The share of the time that a stage idles, if all stages take equally long.

    Args:
        stages: S.
        microbatches: M.
        chunks: V, the parts of the model on each stage.

    Returns:
        (S-1) / (V*M+S-1).
    """
    return (stages - 1) / (chunks * microbatches + stages - 1)


def _gpipe(stage: int, stages: int, microbatches: int, chunks: int) -> Iterator[Step]:
    """All forward steps, then all backward steps in the opposite order."""
    yield from (Step("F", m, stage) for m in range(microbatches))
    yield from (Step("B", m, stage) for m in reversed(range(microbatches)))


def _one_forward_one_backward(
    stage: int, stages: int, microbatches: int, chunks: int
) -> Iterator[Step]:
    """As many forward steps as reach the last stage, then one backward for each forward step."""
    ahead = min(stages - stage - 1, microbatches)
    yield from (Step("F", m, stage) for m in range(ahead))
    for m in range(microbatches - ahead):
        yield Step("F", ahead + m, stage)
        yield Step("B", m, stage)
    yield from (Step("B", m, stage) for m in range(microbatches - ahead, microbatches))


def _interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> Iterator[Step]:
    """1f1b on chunks: groups of S microbatches pass a stage's chunks one after the other."""
    total = microbatches * chunks

    def part_and_microbatch(number: int, backward: bool) -> tuple[int, int]:
        group, rest = divmod(number, stages * chunks)
        chunk, microbatch = divmod(rest, stages)
        chunk = chunks - 1 - chunk if backward else chunk
        return chunk * stages + stage, group * stages + microbatch

    def step(kind: Literal["F", "B"], number: int) -> Step:
        part, microbatch = part_and_microbatch(number, kind == "B")
        return Step(kind, microbatch, part)

    # Without chunks this is plain 1f1b; with them a stage runs twice as far ahead (Megatron-LM).
    ahead = stages - stage - 1
    if chunks > 1:
        ahead = 2 * ahead + (chunks - 1) * stages
    ahead = min(ahead, total)
    yield from (step("F", number) for number in range(ahead))
    for number in range(total - ahead):
        yield step("F", ahead + number)
        yield step("B", number)
    yield from (step("B", number) for number in range(total - ahead, total))


SCHEDULES = {"1f1b": _one_forward_one_backward, "gpipe": _gpipe, "interleaved": _interleaved}


def _choose(what: str, value: str, known: Sequence[str] | Mapping[str, object]) -> None:
    if value not in known:
        raise PartitionError(
            explain(
                f"Unknown {what} {value!r}",
                received=f"{what}={value!r}",
                fix=did_you_mean(value, known),
            )
        )


def _running(order: Sequence[Step]) -> Iterator[int]:
    """Yields how many activations are kept after each step."""
    kept = 0
    for step in order:
        kept += 1 if step.kind == "F" else -1
        yield kept


def _grid(schedule: Schedule, ticks: Mapping[Step, int]) -> str:
    """Draws the steps that have a tick; a dot is an idle tick."""
    end = max(ticks.values(), default=-1) + 1
    width = max((len(str(step)) for step in ticks), default=1)
    lines = []
    for stage, order in enumerate(schedule.orders):
        row = ["."] * end
        for step in order:
            if step in ticks:
                row[ticks[step]] = str(step)
        label = f"stage {stage:>{len(str(schedule.stages - 1))}}  "
        lines.append((label + " ".join(f"{cell:^{width}}" for cell in row)).rstrip())
    return "\n".join(lines)
