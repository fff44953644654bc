"""Schedules as data: what they hold, what they keep, and what the checker finds."""

import dataclasses
from itertools import pairwise

import pytest

from tfdist.errors import PartitionError
from tfdist.pipeline import PartTimes, Schedule, Step, make_schedule, predicted_bubble, simulate

SIZES = [(s, m) for s in (1, 2, 3, 4, 7, 8) for m in (1, 2, 3, 4, 8, 16)]
INTERLEAVED = [(s, s * k, v) for s in (1, 2, 3, 4, 6) for k in (1, 2, 3, 5) for v in (1, 2, 3, 4)]


def schedules():
    for stages, microbatches in SIZES:
        yield make_schedule("gpipe", stages, microbatches)
        yield make_schedule("1f1b", stages, microbatches)
    for stages, microbatches, chunks in INTERLEAVED:
        yield make_schedule("interleaved", stages, microbatches, chunks)


def times(schedule, forward=1.0, backward=2.0, **more):
    return [PartTimes(forward, backward, **more)] * schedule.parts


def test_the_drawing_of_the_module_is_what_is_made():
    import tfdist.pipeline.schedule as module

    drawing = [
        line[14:] for line in module.__doc__.splitlines() if "stage " in line and "F0" in line
    ]
    for name, expected in (("gpipe", drawing[:3]), ("1f1b", drawing[3:])):
        lines = make_schedule(name, 3, 4).grid().splitlines()
        assert [line.split() for line in lines] == [line.split() for line in expected]


def test_a_schedule_prints_a_line_for_each_stage():
    assert str(make_schedule("1f1b", 2, 3)).splitlines() == [
        "stage 0: 0F0 0F1 0B0 0F2 0B1 0B2",
        "stage 1: 1F0 1B0 1F1 1B1 1F2 1B2",
    ]


def test_every_schedule_can_be_run_and_is_complete():
    for schedule in schedules():
        schedule.check()
        assert sum(map(len, schedule.orders)) == 2 * schedule.parts * schedule.microbatches


def test_one_forward_one_backward_keeps_at_most_the_stages_that_follow():
    for stages, microbatches in SIZES:
        kept = make_schedule("1f1b", stages, microbatches).kept()
        assert kept == tuple(min(stages - stage, microbatches) for stage in range(stages))
        assert make_schedule("gpipe", stages, microbatches).kept() == (microbatches,) * stages


def test_equal_stages_idle_as_long_as_predicted():
    for schedule in schedules():
        bubble = simulate(schedule, times(schedule)).bubble
        predicted = predicted_bubble(schedule.stages, schedule.microbatches, schedule.chunks)
        assert bubble == pytest.approx(predicted), (schedule.name, schedule.stages, schedule.chunks)


def test_interleaving_shrinks_the_bubble_and_keeps_more():
    plain, chunked = make_schedule("1f1b", 4, 8), make_schedule("interleaved", 4, 8, 2)
    whole = simulate(plain, times(plain, 2.0, 4.0))
    halves = simulate(chunked, times(chunked, 1.0, 2.0))
    assert halves.makespan < whole.makespan
    assert halves.peak_activations[0] > whole.peak_activations[0]


def test_interleaved_with_one_chunk_is_1f1b():
    assert make_schedule("interleaved", 3, 6).orders == make_schedule("1f1b", 3, 6).orders


def test_no_step_overlaps_another_or_its_source():
    for schedule in schedules():
        parts = [
            PartTimes(0.5 + part % 3, 1.0 + part % 2, transfer=0.25)
            for part in range(schedule.parts)
        ]
        timeline = simulate(schedule, parts)
        ends = {box.step: box.end for box in timeline.boxes}
        for box in timeline.boxes:
            if box.step.kind == "F" and box.step.part:
                assert box.begin >= ends[box.step._replace(part=box.step.part - 1)] + 0.25
            if box.step.kind == "B" and box.step.part + 1 < schedule.parts:
                assert box.begin >= ends[box.step._replace(part=box.step.part + 1)] + 0.25
        for stage in range(schedule.stages):
            own = [box for box in timeline.boxes if box.stage == stage]
            assert all(a.end <= b.begin for a, b in pairwise(own))
        # No schedule is faster than its slowest stage, or than one microbatch's way.
        assert timeline.makespan >= max(timeline.busy) - 1e-9


def test_the_slowest_stage_rules():
    schedule = make_schedule("1f1b", 3, 20)
    parts = [PartTimes(1, 1), PartTimes(2, 4), PartTimes(1, 1)]
    timeline = simulate(schedule, parts)
    assert timeline.makespan == pytest.approx(20 * 6 + 1 + 1)
    assert timeline.busy == (40, 120, 40)


def test_recomputing_trades_time_for_memory():
    schedule = make_schedule("gpipe", 2, 4)
    cost = times(schedule, activation_bytes=100, input_bytes=10)
    kept, full, but_last = (simulate(schedule, cost, r) for r in ("none", "full", "except_last"))
    assert kept.peak_bytes == (400, 400)
    assert full.peak_bytes == (130, 130)  # three inputs wait while the fourth is computed again
    assert but_last.peak_bytes == (130, 130)
    assert kept.makespan < but_last.makespan < full.makespan
    assert {str(s) for s in schedule.recomputed("full") - schedule.recomputed("except_last")} == {
        "0B3",
        "1B3",
    }


def test_the_last_stage_of_1f1b_has_nothing_to_recompute():
    again = make_schedule("1f1b", 3, 5).recomputed("except_last")
    assert {step.part for step in again} == {0, 1}


def swapped(schedule, stage, first, second):
    order = list(schedule.orders[stage])
    order[first], order[second] = order[second], order[first]
    orders = list(schedule.orders)
    orders[stage] = tuple(order)
    return dataclasses.replace(schedule, orders=tuple(orders))


GOOD = make_schedule("1f1b", 2, 3)


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ((GOOD.orders[0][:-1], GOOD.orders[1]), "step 0B2 is missing"),
        ((GOOD.orders[0] * 2, GOOD.orders[1]), "step 0F0 is there twice"),
        ((GOOD.orders[1], GOOD.orders[0]), "step 1F0 belongs to stage 1"),
        (((Step("F", 3, 0),), GOOD.orders[1]), "unknown step 0F3"),
        (swapped(GOOD, 0, 0, 2).orders, "step 0B0 comes before its forward step"),
        (
            # Stage 0 wants a gradient before it hands over the last microbatch, stage 1 the other.
            (
                tuple(Step(k, m, 0) for k, m in (("F", 0), ("B", 0), ("F", 1), ("B", 1))),
                tuple(Step(k, m, 1) for k, m in (("F", 0), ("F", 1), ("B", 0), ("B", 1))),
            ),
            r"wait for each other: 0B0 waits for 1B0; 1F1 waits for 0F1\nstage 0  0F0",
        ),
    ],
)
def test_the_checker_names_the_wrong_step(orders, message):
    microbatches = 2 if len(orders[0]) == 4 else 3
    with pytest.raises(PartitionError, match=message):
        Schedule("own", microbatches, orders).check()


def test_any_swap_is_found_or_harmless():
    """The simulator runs whatever the checker lets pass."""
    for first in range(12):
        for second in range(first):
            schedule = swapped(make_schedule("1f1b", 3, 6), 1, first, second)
            try:
                schedule.check()
            except PartitionError:
                continue
            assert len(simulate(schedule, times(schedule)).boxes) == 36


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1f1", 2, 2), "Unknown schedule '1f1'.*Did you mean '1f1b'"),
        (("gpipe", 0, 2), "`stages` must be an integer >= 1"),
        (("gpipe", 2, 0), "`microbatches` must be"),
        (("1f1b", 2, 2, 2), "Only the interleaved schedule"),
        (("interleaved", 4, 6, 2), "multiple of `stages`.*microbatches=8"),
    ],
)
def test_wrong_numbers_are_refused(arguments, message):
    with pytest.raises(PartitionError, match=message):
        make_schedule(*arguments)


def test_wrong_options_are_refused():
    with pytest.raises(PartitionError, match="Unknown recompute 'ful'"):
        GOOD.recomputed("ful")
    with pytest.raises(PartitionError, match="3 times for 2 parts"):
        simulate(GOOD, [PartTimes(1, 1)] * 3)
