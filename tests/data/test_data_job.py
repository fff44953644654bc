"""Two real workers read and train on what one process does, and disagree in words, not in a hang."""

import json
from itertools import chain
from pathlib import Path

import pytest
from support.processes import run_group

SCRIPT = Path(__file__).with_name("data_job.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of one process, then of two workers that share a folder."""
    folder = str(tmp_path_factory.mktemp("tfds"))
    groups = [
        run_group(SCRIPT, 2, ["multi_worker", folder], 150),  # first: both want the digits
        run_group(SCRIPT, 1, ["single", folder], 100, cluster=False),
    ]
    two, (one,) = [
        [json.loads(result.stdout.split("RESULTS ")[1]) for result in group] for group in groups
    ]
    return one, two


def test_they_read_the_rows_of_one(results):
    one, two = results
    joined = [list(chain(*parts)) for parts in zip(*(worker["digits"] for worker in two))]
    assert joined == one["digits"]
    for epoch in range(2):
        passes = zip(*(worker["rows"][epoch] for worker in two))
        assert [list(chain(*parts)) for parts in passes] == one["rows"][epoch]


def test_they_train_as_one_though_the_chief_looked_at_the_data(results):
    one, two = results
    for worker in two:
        assert worker["history"] == pytest.approx(one["history"], rel=1e-4)


def test_unequal_own_data_trains_for_the_common_steps(results):
    _, two = results
    assert [worker["local steps"] for worker in two] == [3, 3]
    assert two[0]["local history"] == pytest.approx(two[1]["local history"])


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("halves", "differs in its content"),
        ("seeds", "differs in its order. Received: worker 0: seed 0, worker 1: seed 1"),
        ("splits", "differs in its split. Received: worker 0: train, worker 1: test"),
    ],
)
def test_data_that_does_not_match_is_refused_on_every_worker(results, case, message):
    _, two = results
    for worker in two:
        assert message in worker[case]
