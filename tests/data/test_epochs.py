"""The counter of epochs inside a pipeline."""

import gc

import numpy as np
import tensorflow as tf
from sharing import run

from tfdist import data, epoch_order
from tfdist.data.epochs import EpochCounter, per_epoch


def numbered(epoch):
    return tf.data.Dataset.range(2).map(lambda row: 10 * epoch + row)


def test_every_iterator_is_the_next_epoch():
    dataset = per_epoch(numbered, start=3)
    assert [list(dataset.as_numpy_iterator()) for _ in range(2)] == [[30, 31], [40, 41]]


def test_a_repeating_iterator_counts_by_itself():
    dataset = per_epoch(numbered, repeat=True)
    for first in (0, 1):
        values = list(dataset.take(6).as_numpy_iterator())
        assert values == [10 * (first + i // 2) + i % 2 for i in range(6)]


def test_a_counter_made_in_a_strategys_scope_can_be_read():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        dataset = per_epoch(numbered).batch(2)
    distributed = strategy.experimental_distribute_dataset(dataset)
    assert [[batch.numpy().tolist() for batch in distributed] for _ in range(2)] == [
        [[0, 1]],
        [[10, 11]],
    ]


def test_a_counter_can_be_set():
    counter = EpochCounter(2)
    assert counter.get() == 2
    counter.set(5)
    assert int(counter.take()) == 5
    assert counter.get() == 6


def test_a_fit_decides_the_order_whoever_looked_before():
    def shuffled():
        return data.make_dataset(np.arange(20), global_batch_size=20, seed=1)

    plain = shuffled()
    orders = [run(plain)[0] for _ in range(3)]
    looked_at = shuffled().map(lambda row: row)  # derived data is told, too
    gc.collect()
    run(looked_at)
    epoch_order.begin_fit()
    for epoch in range(3):
        epoch_order.begin_epoch(epoch)
        assert run(looked_at)[0] == orders[epoch]
    epoch_order.end_fit()
