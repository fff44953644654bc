"""`split`: where to cut a model, and what each stage then holds, costs and exchanges."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdist.config.fields import did_you_mean
from tfdist.config.sizes import format_bytes, parse_bytes
from tfdist.errors import PartitionError, explain
from tfdist.pipeline.costs import Costs, measure_costs
from tfdist.pipeline.cuts import bottleneck, least_bottleneck
from tfdist.pipeline.graph import Graph, Shared, read_graph
from tfdist.pipeline.loads import Loads, kept_at_once, make_loads, peak_memory, variable_bytes
from tfdist.pipeline.schedule import Schedule, make_schedule, predicted_bubble
from tfdist.pipeline.simulation import PartTimes, Timeline, simulate

if TYPE_CHECKING:
    from tfdist.pipeline.stages import StageModel

__all__ = ["BALANCES", "SHARED", "Crossing", "Partition", "StagePlan", "Tie", "split"]

BALANCES = ("time", "flops", "parameters")
SHARED = ("auto", "together", "tied")

# A tied weight's gradient has to travel in every step: only for a slowest stage faster by this.
_WORTH_A_TIE = 0.1


@dataclass(frozen=True)
class StagePlan:
    """One part of the model.

    Attributes:
        part: its number, in the order of the computation.
        stage: the device that it lies on: the part's number, unless the schedule is interleaved.
        operations: names of its operations; a layer in a nested model is "model/layer", the second
            call of a layer "layer#2".
        layers: names of the layers among them.
        parameters: number of weights. A tied weight counts on every stage that uses it.
        flops: floating-point operations of one microbatch's forward step.
        activation_bytes: kept for one microbatch from its forward to its backward step.
        input_bytes: of the tensors that enter the part, of one microbatch.
        memory_bytes: weights, gradients, optimizer slots, and the most activations at a time.
        forward_seconds: measured for one microbatch; None if not measured.
        backward_seconds: measured for one microbatch; None if not measured.
    """

    part: int
    stage: int
    operations: tuple[str, ...]
    layers: tuple[str, ...]
    parameters: int
    flops: int
    activation_bytes: int
    input_bytes: int
    memory_bytes: int
    forward_seconds: float | None = None
    backward_seconds: float | None = None


@dataclass(frozen=True)
class Crossing:
    """A tensor that goes from the part that makes it to the parts that use it.

    Attributes:
        name: the operation that makes it.
        source: number of the part that makes it.
        targets: numbers of the parts that use it.
        shape: of one microbatch.
        dtype: its dtype.
        bytes: of one microbatch.
    """

    name: str
    source: int
    targets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Tie:
    """Weights that parts on several stages use: each has a copy, whose gradients are summed.

    Attributes:
        weights: paths of the variables.
        parts: numbers of the parts that use them. The first one owns them: their optimizer slots
            lie there, and it sends the updated weights to the others.
        bytes: of the weights.
        variables: the variables.
    """

    weights: tuple[str, ...]
    parts: tuple[int, ...]
    bytes: int
    variables: tuple[Any, ...] = field(repr=False, compare=False)

    @property
    def owner(self) -> int:
        """The part that updates the weights."""
        return self.parts[0]


@dataclass(frozen=True, eq=False)
class Partition:
    """A model cut into parts; print it for a table.

    Attributes:
        graph: the model's operations.
        cuts: numbers of the operations that the parts but the first begin with.
        stages: the parts.
        crossings: the tensors that go from part to part.
        ties: weights on several stages.
        schedule: the order of the stages' steps.
        balance: what was balanced: "time", "flops", "parameters" or "given".
        recompute: which activations are computed again: see `Schedule.recomputed`.
        batch_size: rows of a batch.
        costs: of each operation.
        slowest: the largest cost of a part, in what was balanced.
    """

    graph: Graph
    cuts: tuple[int, ...]
    stages: tuple[StagePlan, ...]
    crossings: tuple[Crossing, ...]
    ties: tuple[Tie, ...]
    schedule: Schedule
    balance: str
    recompute: str
    batch_size: int
    costs: Costs
    slowest: float

    @property
    def microbatches(self) -> int:
        """M."""
        return self.schedule.microbatches

    @property
    def bubble(self) -> float:
        """Predicted idle share with stages of equal times: (S-1) / (M+S-1)."""
        schedule = self.schedule
        return predicted_bubble(schedule.stages, schedule.microbatches, schedule.chunks)

    def crossing(self, cut: int) -> tuple[Crossing, ...]:
        """The tensors that cross one cut.

        Args:
            cut: 1 for the cut between the parts 0 and 1, and so on.
        """
        return tuple(c for c in self.crossings if c.source < cut <= max(c.targets))

    def stage_of(self, layer: str) -> int:
        """The number of the part that a layer or operation lies on.

        Raises:
            PartitionError: there is no such operation.
        """
        for plan in self.stages:
            if layer in plan.operations:
                return plan.part
        raise PartitionError(
            explain(
                f"The model has no operation {layer!r}",
                received=repr(layer),
                fix=did_you_mean(layer, self.graph.names),
            )
        )

    def models(self) -> tuple[StageModel, ...]:
        """Models of the parts, over the model's own layers."""
        from tfdist.pipeline.stages import make_stages

        return make_stages(self.graph, self.cuts)

    def part_times(self, transfer_bandwidth: float | None = None) -> tuple[PartTimes, ...]:
        """The parts' times for `simulate`.

        Measured seconds; where nothing was measured, seconds of a device that computes 10**9
        operations a second, twice as many in the backward as in the forward step.

        Args:
            transfer_bandwidth: bytes a second between stages; None means that transfers take no
                time.
        """
        times = []
        for plan in self.stages:
            forward = plan.flops / 1e9
            backward = 2 * forward
            if plan.forward_seconds is not None and plan.backward_seconds is not None:
                forward, backward = plan.forward_seconds, plan.backward_seconds
            sent = sum(c.bytes for c in self.crossings if c.source == plan.part)
            transfer = sent / transfer_bandwidth if transfer_bandwidth else 0.0
            times.append(
                PartTimes(forward, backward, transfer, plan.activation_bytes, plan.input_bytes)
            )
        return tuple(times)

    def simulate(self, transfer_bandwidth: float | None = None) -> Timeline:
        """Runs the schedule on paper with the parts' times; see `part_times`."""
        return simulate(self.schedule, self.part_times(transfer_bandwidth), self.recompute)

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draws the schedule: a row for each stage, time to the right.

        Args:
            path: where to write; `.svg`, or `.png`, which needs matplotlib.

        Raises:
            PartitionError: the path ends otherwise, or matplotlib is missing.
        """
        from tfdist.pipeline.drawing import draw

        draw(self.simulate(), path, title=self.title())

    def title(self) -> str:
        """The model and how it is cut, on one line."""
        chunks = f", {self.schedule.chunks} chunks a stage" if self.schedule.chunks > 1 else ""
        return (
            f"{self.graph.model.name}: {self.schedule.stages} stages{chunks}, "
            f"{self.microbatches} microbatches of {self.costs.rows} rows, {self.schedule.name}"
        )

    def __str__(self) -> str:
        """The table."""
        from tfdist.pipeline.report import describe

        return describe(self)


def split(
    model: Any,
    stages: int,
    *,
    balance: str | Sequence[str] | Sequence[int] = "time",
    microbatches: int | None = None,
    batch_size: int = 32,
    schedule: str = "1f1b",
    chunks: int = 1,
    memory_limit: int | str | Sequence[int | str] | None = None,
    recompute: str = "none",
    shared: str = "auto",
    optimizer_slots: int = 2,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    device: str | None = None,
) -> Partition:
    """Cuts a model into the stages of a pipeline, and says what each would do. Trains nothing.

    The slowest stage is as fast as it can be, exactly, over all ways to cut the model's operations
    in their order. Nested models are cut inside.

    Args:
        model: a functional or Sequential Keras model.
        stages: S, number of devices.
        balance: what the slowest stage has least of: "time" (each operation's forward and backward
            pass is run and timed), "flops" or "parameters". Or the cuts themselves: names of the
            layers that the stages but the first begin with, or the number of operations of each.
        microbatches: M, parts of each batch; None means 4 * stages (GPipe's advice for a small
            bubble), or one for each row of a smaller batch.
        batch_size: rows of a batch.
        schedule: "1f1b", "gpipe" or "interleaved".
        chunks: parts of the model on each stage; more than one for "interleaved" only.
        memory_limit: bytes of a device, or of each stage's: a number, or text such as "16GiB".
            Counted are weights, gradients, optimizer slots and the activations that the schedule
            keeps; not the working space of a running layer. Chunks share it equally.
        recompute: "none", "full" or "except_last": activations that are dropped and computed
            again, at the price of another forward pass.
        shared: what becomes of weights that several operations use: "together" keeps them in one
            stage; "tied" may copy trainable ones to several stages, where their gradients are
            summed; "auto" does so only where the slowest stage gets at least 10 % faster, or the
            model would not fit otherwise.
        optimizer_slots: variables that the optimizer keeps for each weight: 2 for Adam.
        input_shapes: shapes without the batch, by input name, of inputs of unknown size.
        device: where operations are timed; None takes TensorFlow's default.

    Returns:
        The partition.

    Raises:
        PartitionError: the model can't be cut so, or does not fit.
    """
    graph = read_graph(model)
    microbatches = _microbatches(stages, microbatches, batch_size)
    plan = make_schedule(schedule, stages, microbatches, chunks)
    plan.recomputed(recompute)
    _choose("shared", shared, SHARED)
    given = None if isinstance(balance, str) else tuple(balance)
    if isinstance(balance, str):
        _choose("balance", balance, BALANCES)
    if plan.parts > len(graph):
        raise PartitionError(
            explain(
                "There must not be more stages than operations in the model",
                received=f"stages={stages}, chunks={chunks}, operations={len(graph)} "
                f"(model {model.name!r})",
                fix=f"Use at most {len(graph) // chunks} stages",
            )
        )
    rows = -(-batch_size // microbatches)
    costs = measure_costs(
        graph, rows, timed=balance == "time", device=device, input_shapes=input_shapes
    )
    problem = _Problem(
        graph,
        costs,
        make_loads(graph, costs, optimizer_slots),
        plan,
        recompute,
        "flops" if given is not None else str(balance),
        _limits(memory_limit, plan),
    )
    cuts = (
        problem.solve(shared) if given is None else problem.check(_given_cuts(graph, given, plan))
    )
    return _describe(problem, cuts, "given" if given is not None else str(balance), batch_size)


class _Problem:
    """Everything that decides where the cuts are."""

    def __init__(
        self,
        graph: Graph,
        costs: Costs,
        loads: Loads,
        schedule: Schedule,
        recompute: str,
        balance: str,
        limits: tuple[float, ...],
    ) -> None:
        self.graph = graph
        self.costs = costs
        self.loads = loads
        self.schedule = schedule
        self.recompute = recompute
        self.limits = limits
        parts = range(schedule.parts)
        self.memory = [
            peak_memory(loads, kept_at_once(schedule, part, recompute)) for part in parts
        ]
        self.work = [self._work(part, balance) for part in parts]
        self._crossing = np.array(
            [
                sum(costs.tensor_bytes[number] for number in graph.crossing(cut))
                for cut in range(len(graph) + 1)
            ],
            dtype=float,
        )

    def _work(self, part: int, balance: str) -> np.ndarray:
        """What a part costs in what is balanced."""
        loads = self.loads
        if balance == "parameters":
            return loads.parameters
        forward, backward = loads.forward, loads.backward
        if balance == "flops" or forward is None or backward is None:
            forward, backward = loads.flops, 2 * loads.flops
        order = self.schedule.orders[self.schedule.stage_of(part)]
        again = sum(step.part == part for step in self.schedule.recomputed(self.recompute))
        mine = sum(step.part == part and step.kind == "B" for step in order)
        return forward * (1 + again / mine) + backward

    def solve(self, shared: str) -> tuple[int, ...]:
        """The best cuts.

        Raises:
            PartitionError: no partition is possible, or none fits.
        """
        together = tied = None
        if shared != "tied":
            together = self._best(self.graph.shared)
        fixed = tuple(group for group in self.graph.shared if not group.can_be_tied)
        if (shared != "together" and len(fixed) < len(self.graph.shared)) or shared == "tied":
            tied = self._best(fixed)
        if together is not None and tied is not None:
            faster = tied[0] <= together[0] * (1 - _WORTH_A_TIE)
            return tied[1] if faster else together[1]
        found = together or tied
        if found is None:
            raise self._why_not(self.graph.shared if shared == "together" else fixed)
        return found[1]

    def check(self, cuts: tuple[int, ...]) -> tuple[int, ...]:
        """Checks cuts that the user gave.

        Raises:
            PartitionError: a cut separates what must be together, or a part does not fit.
        """
        for group in self.graph.shared:
            for cut in cuts:
                if group.between(cut) and not group.can_be_tied:
                    raise self._separated(group, cut)
        edges = (0, *cuts, len(self.graph))
        for part, (first, last) in enumerate(pairwise(edges)):
            if self.memory[part][first, last] > self.limits[part]:
                raise self._too_large(part, first, last)
        return cuts

    def _best(self, kept: Sequence[Shared]) -> tuple[float, tuple[int, ...]] | None:
        fits = [
            np.where(memory <= limit, work, np.inf)
            for work, memory, limit in zip(self.work, self.memory, self.limits)
        ]
        return least_bottleneck(self._allowed(fits, kept), self._prices(kept))

    def _allowed(self, tables: Sequence[np.ndarray], kept: Sequence[Shared]) -> list[np.ndarray]:
        """The tables without empty parts, and without cuts between what is kept together."""
        size = len(self.graph) + 1
        forbidden: np.ndarray = ~np.triu(np.ones((size, size), dtype=bool), k=1)
        for cut in range(1, len(self.graph)):
            if any(group.between(cut) for group in kept):
                forbidden[cut, :] = forbidden[:, cut] = True
        return [np.where(forbidden, np.inf, table) for table in tables]

    def _prices(self, kept: Sequence[Shared]) -> np.ndarray:
        """Bytes across each cut: activations, and the weights that it ties."""
        prices = self._crossing.copy()
        for group in self.graph.shared:
            if group not in kept:
                size = sum(variable_bytes(weight) for weight in group.weights)
                prices[group.operations[0] + 1 : group.operations[-1] + 1] += size
        return prices

    def _why_not(self, kept: Sequence[Shared]) -> PartitionError:
        """The reason: shared weights leave no cuts, or, by the least excess, memory does."""
        over = [memory - limit for memory, limit in zip(self.memory, self.limits)]
        excess = [np.where(np.isfinite(table), table, -1e300) for table in over]
        least = least_bottleneck(self._allowed(excess, kept), self._prices(kept))
        if least is None:
            groups = ", ".join(
                " and ".join(self.graph.names[index] for index in group.operations)
                for group in kept
            )
            return PartitionError(
                explain(
                    "Operations that share weights leave too few places to cut",
                    received=f"{self.schedule.parts} parts; together have to stay: {groups}",
                    fix="Use fewer stages, or shared='tied' if the weights are trainable",
                )
            )
        edges = (0, *least[1], len(self.graph))
        worst = max(
            range(self.schedule.parts), key=lambda part: over[part][edges[part], edges[part + 1]]
        )
        return self._too_large(worst, edges[worst], edges[worst + 1])

    def _too_large(self, part: int, first: int, last: int) -> PartitionError:
        needed, limit = float(self.memory[part][first, last]), self.limits[part]
        state = float(self.loads.state_bytes[first, last])
        stage = self.schedule.stage_of(part)
        where = f"stage {stage}" + (f" (part {part})" if self.schedule.chunks > 1 else "")
        return PartitionError(
            explain(
                f"The model does not fit: {where} exceeds its memory by "
                f"{format_bytes(needed - limit)}, even where the model is best cut",
                received=f"{format_bytes(needed)} ({format_bytes(state)} for weights, gradients "
                f"and optimizer slots, {format_bytes(needed - state)} for activations) with a "
                f"limit of {format_bytes(limit)}; {where} holds {self._span(first, last)}",
                fix="Use more stages, smaller microbatches, recompute='full', or a larger limit",
            )
        )

    def _separated(self, group: Shared, cut: int) -> PartitionError:
        names = [self.graph.names[index] for index in group.operations]
        return PartitionError(
            explain(
                "Operations that share weights which calls write to have to lie on one stage",
                received=f"a cut before {self.graph.names[cut]} between {' and '.join(names)}",
                fix="Move the cut",
            )
        )

    def _span(self, first: int, last: int) -> str:
        names = self.graph.names[first:last]
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _describe(problem: _Problem, cuts: tuple[int, ...], balance: str, batch_size: int) -> Partition:
    """Puts together what is known of the parts between the cuts."""
    graph, loads, schedule = problem.graph, problem.loads, problem.schedule
    edges = (0, *cuts, len(graph))
    plans = []
    for part, (first, last) in enumerate(pairwise(edges)):
        timed = loads.forward is not None and loads.backward is not None
        plans.append(
            StagePlan(
                part=part,
                stage=schedule.stage_of(part),
                operations=graph.names[first:last],
                layers=tuple(o.name for o in graph.operations[first:last] if o.is_layer),
                parameters=int(loads.parameters[first, last]),
                flops=int(loads.flops[first, last]),
                activation_bytes=int(loads.kept_bytes[first, last]),
                input_bytes=int(loads.input_bytes[first, last]),
                memory_bytes=int(problem.memory[part][first, last]),
                forward_seconds=float(loads.forward[first, last]) if timed else None,  # type: ignore[index]
                backward_seconds=float(loads.backward[first, last]) if timed else None,  # type: ignore[index]
            )
        )
    return Partition(
        graph=graph,
        cuts=cuts,
        stages=tuple(plans),
        crossings=_crossings(problem, edges),
        ties=_ties(graph, edges),
        schedule=schedule,
        balance=balance,
        recompute=problem.recompute,
        batch_size=batch_size,
        costs=problem.costs,
        slowest=bottleneck(problem.work, cuts),
    )


def _crossings(problem: _Problem, edges: Sequence[int]) -> tuple[Crossing, ...]:
    graph, costs = problem.graph, problem.costs
    part_of = _part_of(edges)
    found = []
    for number, maker in graph.maker.items():
        source = part_of[maker]
        targets = sorted({part_of[user] for user in graph.users[number]} - {source})
        if targets:
            tensor = graph.tensors[number]
            found.append(
                Crossing(
                    tensor.name,
                    source,
                    tuple(targets),
                    costs.shapes[number],
                    tensor.dtype,
                    costs.tensor_bytes[number],
                )
            )
    return tuple(sorted(found, key=lambda crossing: crossing.source))


def _ties(graph: Graph, edges: Sequence[int]) -> tuple[Tie, ...]:
    part_of = _part_of(edges)
    found = []
    for group in graph.shared:
        parts = sorted({part_of[index] for index in group.operations})
        if len(parts) > 1:
            paths = tuple(weight.path for weight in group.weights)
            size = sum(variable_bytes(weight) for weight in group.weights)
            found.append(Tie(paths, tuple(parts), size, group.weights))
    return tuple(found)


def _part_of(edges: Sequence[int]) -> list[int]:
    """The part of each operation."""
    return [part for part, (first, last) in enumerate(pairwise(edges)) for _ in range(first, last)]


def _given_cuts(graph: Graph, given: tuple[Any, ...], schedule: Schedule) -> tuple[int, ...]:
    """The cuts that a list of counts or names asks for.

    Raises:
        PartitionError: the list does not fit the model.
    """
    parts = schedule.parts
    if given and all(isinstance(item, int) and not isinstance(item, bool) for item in given):
        if len(given) != parts or sum(given) != len(graph) or min(given) < 1:
            raise PartitionError(
                explain(
                    "A list of counts gives each part its number of operations",
                    received=f"balance={list(given)} (sum {sum(given)}) for {parts} parts and "
                    f"{len(graph)} operations",
                    fix=f"Give {parts} numbers >= 1 whose sum is {len(graph)}",
                )
            )
        return tuple(int(cut) for cut in np.cumsum(given)[:-1])
    if len(given) != parts - 1 or not all(isinstance(item, str) for item in given):
        raise PartitionError(
            explain(
                "A list of names says with which layer each part but the first begins",
                received=f"balance={list(given)} for {parts} parts",
                fix=f"Give {parts - 1} names of layers, or {parts} counts",
            )
        )
    for name in given:
        if name not in graph.names:
            raise PartitionError(
                explain(
                    f"`balance` names {name!r}, which the model does not have",
                    received=f"balance={list(given)}",
                    fix=did_you_mean(name, graph.names),
                )
            )
    cuts = tuple(graph.names.index(name) for name in given)
    if cuts[:1] == (0,) or any(first >= second for first, second in pairwise(cuts)):
        raise PartitionError(
            explain(
                "The layers in `balance` must be in the model's order, after its first one",
                received=f"balance={list(given)}, the order is {', '.join(graph.names)}",
                fix="Reorder them",
            )
        )
    return cuts


def _microbatches(stages: int, microbatches: int | None, batch_size: int) -> int:
    """How many microbatches; none of them may be empty.

    Raises:
        PartitionError: the batch has fewer rows.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise PartitionError(
            explain(
                "`batch_size` must be an integer >= 1",
                received=f"batch_size={batch_size!r}",
                fix="Give the rows of a batch",
            )
        )
    if microbatches is None:
        return max(1, min(4 * stages, batch_size)) if isinstance(stages, int) else 1
    if isinstance(microbatches, int) and microbatches > batch_size:
        raise PartitionError(
            explain(
                "A batch must have a row for each microbatch",
                received=f"microbatches={microbatches}, batch_size={batch_size}",
                fix="Use fewer microbatches, or a larger batch",
            )
        )
    return microbatches


def _limits(
    memory_limit: int | str | Sequence[int | str] | None, schedule: Schedule
) -> tuple[float, ...]:
    """The bytes that each part may take.

    Raises:
        PartitionError: a limit can't be read, or there is not one for each stage.
    """
    if memory_limit is None:
        return (float("inf"),) * schedule.parts
    listed: list[Any] = (
        [memory_limit] * schedule.stages
        if isinstance(memory_limit, (int, str))
        else list(memory_limit)
    )
    try:
        limits = [parse_bytes(x) if isinstance(x, str) else int(x) for x in listed]
    except (TypeError, ValueError) as error:
        raise PartitionError(
            explain(
                f"`memory_limit` must be a number of bytes: {error}",
                received=f"memory_limit={memory_limit!r}",
                fix="Such as 16GiB",
            )
        ) from None
    if len(limits) != schedule.stages or min(limits) <= 0:
        raise PartitionError(
            explain(
                "`memory_limit` must be one positive number, or one for each stage",
                received=f"memory_limit={memory_limit!r}, stages={schedule.stages}",
                fix=f"Give 1 or {schedule.stages} numbers",
            )
        )
    return tuple(
        limits[schedule.stage_of(part)] / schedule.chunks for part in range(schedule.parts)
    )


def _choose(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise PartitionError(
            explain(
                f"Unknown {what} {value!r}",
                received=f"{what}={value!r}",
                fix=did_you_mean(value, known),
            )
        )
