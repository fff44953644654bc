"""What workers compare before they read: with a stand-in for the exchange, in one process."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from tfdist import data
from tfdist.data.agreement import Claim, agree
from tfdist.errors import DataError

CLAIM = Claim(shard="global", rows=10, steps=3, batch=4, order="seed 1", split="train", content="a")


def exchange_with(*others):
    """An exchange whose other workers claim what is given."""

    def exchange(text):
        return [text, *(json.dumps(dataclasses.asdict(claim)) for claim in others)]

    return exchange


def other(**changes):
    return dataclasses.replace(CLAIM, **changes)


def test_nobody_to_ask():
    assert agree(CLAIM, None) == 3


def test_equal_claims():
    assert agree(CLAIM, exchange_with(CLAIM, CLAIM)) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 9}, "differs in its rows. Received: worker 0: 10, worker 1: 9.*shard='local'"),
        ({"content": "b"}, "differs in its content.*shard='local' if each brings its own part"),
        ({"batch": 8}, "differs in its batch.*worker 1: 8"),
        ({"order": "seed 2"}, "worker 0: seed 1, worker 1: seed 2. Give the same seed"),
        ({"split": "test"}, "worker 1: test. Ask for the same split"),
        ({"shard": "local"}, "differs in its shard"),
    ],
)
def test_what_differs_is_named(changes, message):
    with pytest.raises(DataError, match=message):
        agree(CLAIM, exchange_with(other(**changes)))


LOCAL = other(shard="local")


def test_own_data_may_differ_but_not_in_steps(caplog):
    claims = [dataclasses.replace(LOCAL, rows=9, content="b"), dataclasses.replace(LOCAL, steps=2)]
    assert agree(LOCAL, exchange_with(*claims)) == 2
    assert "unequal data (rows [10, 9, 10], steps [3, 3, 2]): every epoch takes 2" in caplog.text
    assert "1 of this worker's steps are left out" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0, "rows": 0}, "has no data for a single step.*worker 0: 10, worker 1: 0"),
        ({"steps": -1, "rows": -1}, "Some workers' data never ends, others' does"),
    ],
)
def test_own_data_that_can_not_be_brought_together(changes, message):
    with pytest.raises(DataError, match=message):
        agree(LOCAL, exchange_with(dataclasses.replace(LOCAL, **changes)))


class Workers:
    """Runs make_dataset for each worker in turn, until all know each other's claims."""

    def __init__(self, count):
        self.count = count

    def make(self, source_of, **arguments):
        texts = [""] * self.count

        def exchange_for(rank):
            def exchange(text):
                texts[rank] = text
                return [other or text for other in texts]

            return exchange

        for _ in range(2):  # the second time every claim is known
            parts = [
                data.make_dataset(
                    source_of(rank),
                    global_batch_size=4,
                    num_workers=self.count,
                    rank=rank,
                    exchange=exchange_for(rank),
                    **arguments,
                )
                for rank in range(self.count)
            ]
        return parts


def test_unequal_own_parts_take_the_steps_of_the_smallest():
    for source in (np.arange, tf.data.Dataset.range):
        parts = Workers(2).make(lambda rank, source=source: source(20 - 8 * rank), shard="local")
        assert [len(list(part)) for part in parts] == [6, 6]
        assert [data.steps_per_epoch(part) for part in parts] == [6, 6]


def test_the_rows_left_out_change_from_epoch_to_epoch():
    part, _ = Workers(2).make(lambda rank: np.arange(20 - 8 * rank), shard="local", seed=1)
    epochs = [np.concatenate(list(part.as_numpy_iterator())) for _ in range(2)]
    assert len(epochs[0]) == len(set(epochs[0])) == 12
    assert set(epochs[0]) != set(epochs[1])


def test_own_halves_of_an_array_that_are_not_called_local_are_found_out():
    with pytest.raises(DataError, match=r"differs in its content.*shard='local'"):
        Workers(2).make(lambda rank: np.arange(32) + 32 * rank)


def test_a_common_seed_is_common():
    parts = Workers(2).make(lambda rank: np.arange(8))
    assert sorted(np.concatenate([list(part.unbatch()) for part in parts])) == list(range(8))
