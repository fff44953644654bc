"""The arithmetic of shares: every row belongs to one worker, and all take the same steps."""

import pytest

from tfdist.data.shares import Share
from tfdist.errors import DataError

CASES = [  # rows, global batch, workers
    (12, 4, 2),  # divides
    (9, 4, 2),  # the last batch has a row for the first worker alone
    (11, 4, 2),  # the last batch gives the second worker one row
    (1, 4, 4),  # one row
    (3, 8, 4),  # fewer rows than replicas' rows
    (10, 6, 3),
    (7, 7, 7),
    (5, 6, 1),
]


@pytest.mark.parametrize(("rows", "batch", "workers"), CASES)
def test_the_shares_of_a_batch_are_its_rows_in_order(rows, batch, workers):
    shares = [Share(batch, workers, rank) for rank in range(workers)]
    seen = []
    for step in range(shares[0].steps(rows)):
        for share in shares:
            start, stop = share.bounds(step, rows)
            assert stop - start <= share.batch
            seen.extend(range(start, stop))
    assert seen == list(range(rows))


@pytest.mark.parametrize(("rows", "batch", "workers"), CASES)
@pytest.mark.parametrize("drop", [False, True])
def test_counts_agree_with_the_bounds(rows, batch, workers, drop):
    for rank in range(workers):
        share = Share(batch, workers, rank)
        steps = share.steps(rows, drop)
        sizes = [stop - start for start, stop in (share.bounds(k, rows) for k in range(steps))]
        assert share.own_rows(rows, drop) == sum(sizes)
        if not drop and rows % batch:
            assert share.last_rows(rows) == sizes[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 0), r"`global_batch_size` must be a positive integer\. Received: 0"),
        ((2.5, 1, 0), r"Received: 2\.5"),
        ((True, 1, 0), r"Received: True"),
        ((4, 0, 0), r"`num_workers` must be"),
        ((4, 2, 2), r"`rank` must be one of the workers\. Received: rank=2, num_workers=2"),
        ((4, 2, -1), r"rank=-1"),
        ((10, 4, 0), r"global_batch_size=10, workers=4\. Use 8 or 12"),
        ((3, 4, 0), r"Use 4 or 4|Use 4"),
    ],
)
def test_wrong_sizes_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        Share(*arguments)
