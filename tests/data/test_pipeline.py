"""The promise: with one seed, any number of workers reads what one process reads, step by step."""

import numpy as np
import pytest
import tensorflow as tf
from sharing import job, order, run

from tfdist import data

SIZES = [(24, 12), (29, 12), (1, 12)]  # rows, global batch; test_shares.py has more


def arrays(rows):
    return np.arange(rows), np.arange(rows, dtype="float32")[:, None] * [1.0, 2.0]


def nested(rows):
    texts = np.array([f"row {i}" for i in range(rows)])
    return {"a": np.arange(rows), "b": texts}, np.arange(rows)


def dataset(rows):
    return tf.data.Dataset.from_tensor_slices(arrays(rows))


def unknown_size(rows):
    return dataset(rows).filter(lambda number, _: number >= 0)


def ragged(rows):
    """Rows that are ragged themselves: of [rows, 2, None]."""
    lengths = [i % 3 + 1 for i in range(2 * rows)]
    flat = tf.RaggedTensor.from_row_lengths(tf.range(sum(lengths)), lengths)
    return tf.data.Dataset.from_tensor_slices(
        (tf.RaggedTensor.from_uniform_row_length(flat, 2), tf.range(rows))
    )


def sparse(rows):
    return tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(np.eye(rows)), tf.range(rows)))


SOURCES = {"arrays": arrays, "nested": nested, "dataset": dataset, "unknown size": unknown_size}


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_together_read_what_one_process_reads(source, workers, shuffle):
    for rows, batch in SIZES:
        content = SOURCES[source](rows)
        arguments = {"global_batch_size": batch, "seed": 5, "shuffle": shuffle, "epochs": 2}
        assert job(content, workers, **arguments) == job(content, 1, **arguments)


@pytest.mark.parametrize("source", [ragged, sparse])
def test_ragged_and_sparse_rows_too(source):
    for rows in (8, 9):
        arguments = {"global_batch_size": 4, "seed": 5, "epochs": 2}
        assert job(source(rows), 2, **arguments) == job(source(rows), 1, **arguments)


@pytest.mark.parametrize("source", SOURCES)
def test_mapped_rows_too(source):
    def change(*row):
        features, label = row
        return tf.nest.map_structure(tf.identity, features), label + tf.cast(1, label.dtype)

    for rows in (24, 25):
        content = SOURCES[source](rows)
        arguments = {"global_batch_size": 12, "seed": 5, "map_fn": change, "epochs": 2}
        together = job(content, 3, **arguments)
        assert together == job(content, 1, **arguments)
        plain = job(content, 1, global_batch_size=12, seed=5, epochs=2)
        assert np.allclose(together[1][0][-1], np.asarray(plain[1][0][-1]) + 1)


@pytest.mark.parametrize("source", SOURCES)
def test_every_row_once_per_epoch_in_another_order(source):
    first, second = job(SOURCES[source](29), 2, epochs=2, global_batch_size=4, seed=1)
    orders = [order(first), order(second)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(range(29))
    assert orders[0] != orders[1] != sorted(orders[1])


def test_without_shuffle_worker_w_has_rows_wb_to_w_plus_1_b():
    part = data.make_dataset(
        np.arange(20), global_batch_size=8, num_workers=4, rank=2, shuffle=False
    )
    assert run(part) == [[4, 5], [12, 13], []]


def test_a_worker_without_rows_gets_a_step_of_the_same_kind():
    for source in (arrays(9), dataset(9), unknown_size(9)):
        for function in (None, lambda number, row: (number, row * 2)):
            part = data.make_dataset(
                source, global_batch_size=4, num_workers=2, rank=1, map_fn=function
            )
            *_, last = part
            assert [item.shape.as_list() for item in last] == [[0], [0, 2]]
            assert [item.dtype for item in last] == [spec.dtype for spec in part.element_spec]


@pytest.mark.parametrize("source", [arrays, dataset])
def test_the_seed_and_the_epoch_alone_decide_the_order(source):
    arguments = {"global_batch_size": 4, "seed": 3}
    before = job(source(20), 1, epochs=4, **arguments)
    tf.random.set_seed(99)  # which tf.data would mix in
    assert job(source(20), 1, epochs=4, **arguments) == before
    assert job(source(20), 1, epochs=2, start_epoch=2, **arguments) == before[2:]
    assert job(source(20), 1, epochs=1, **{**arguments, "seed": 4}) != before[:1]


@pytest.mark.parametrize("source", [arrays, dataset])
@pytest.mark.parametrize("map_fn", [None, lambda number, row: (number, row)])
def test_repeating_data_runs_through_the_same_epochs(source, map_fn):
    once = job(source(10), 2, epochs=3, global_batch_size=4, seed=3, map_fn=map_fn)
    endless = data.make_dataset(source(10), global_batch_size=4, seed=3, repeat=True, map_fn=map_fn)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    assert data.steps_per_epoch(endless) == 3
    together = job(source(10), 2, limit=9, global_batch_size=4, seed=3, repeat=True, map_fn=map_fn)
    assert together[0] == once[0] + once[1] + once[2]


def test_what_is_prefetched_beyond_the_last_step_does_not_count():
    once = job(np.arange(8), 1, epochs=2, global_batch_size=4, seed=3)
    endless = data.make_dataset(np.arange(8), global_batch_size=4, seed=3, repeat=True, prefetch=50)
    both = run(endless, 2) + run(endless, 2)
    assert both == [step[0] for epoch in once for step in epoch]


def test_several_workers_without_a_seed_shuffle_alike():
    assert job(np.arange(9), 3, global_batch_size=3) == job(np.arange(9), 3, global_batch_size=3)


def test_one_process_without_a_seed_follows_pythons_random():
    import random

    def order(seed):
        random.seed(seed)
        return job(np.arange(50), 1, global_batch_size=50)

    assert order(1) == order(1) != order(2)


def test_only_training_data_is_shuffled_and_loses_its_remainder():
    arguments = {"global_batch_size": 4, "seed": 3, "drop_remainder": True}
    assert job(np.arange(10), 2, split="test", **arguments) == [
        [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]]]
    ]
    (training,) = job(np.arange(10), 2, **arguments)
    assert [len(step[0]) for step in training] == [4, 4]
    assert training[0] != [[0, 1, 2, 3]]
    (named,) = job(np.arange(10), 1, split="test", training=True, **arguments)
    assert len(named) == 2


@pytest.mark.parametrize("source", [arrays, dataset])
def test_full_batches_have_a_static_size(source):
    for rows, options, size in ((8, {}, 2), (9, {}, None), (9, {"drop_remainder": True}, 2)):
        for map_fn in (None, lambda number, row: (number, row)):
            part = data.make_dataset(
                source(rows), global_batch_size=4, num_workers=2, map_fn=map_fn, **options
            )
            assert part.element_spec[0].shape[0] == size


def test_the_result_is_marked_as_the_workers_own_part():
    off = tf.data.experimental.AutoShardPolicy.OFF
    for workers in (1, 2):
        part = data.make_dataset(np.arange(8), global_batch_size=4, num_workers=workers)
        mapped = part.map(lambda row: row + 1)
        for result in (part, mapped):
            assert result.options().experimental_distribute.auto_shard_policy == off


def test_a_stream_in_memory_is_read_once():
    reads = []

    def generate():
        reads.append(1)
        yield from range(10)

    source = tf.data.Dataset.from_generator(
        generate, output_signature=tf.TensorSpec((), tf.int64)
    ).apply(tf.data.experimental.assert_cardinality(10))
    for cache, expected in ((True, 1), (False, 3)):
        reads.clear()
        job(source, 1, epochs=3, global_batch_size=4, cache=cache)
        assert len(reads) == expected


def test_a_row_function_may_use_pythons_if():
    def fold(number):
        if number > 4:
            number = -number
        return number

    for source in (np.arange(8), tf.data.Dataset.range(8)):
        assert job(source, 2, global_batch_size=8, shuffle=False, map_fn=fold) == [
            [[[0, 1, 2, 3, 4, -5, -6, -7]]]
        ]


def test_each_worker_maps_its_own_rows_only():
    seen = []

    def look(number):
        tf.py_function(lambda value: seen.append(int(value)), [number], [])
        return number

    for source in (np.arange(8), tf.data.Dataset.range(8)):
        seen.clear()
        part = data.make_dataset(
            source, global_batch_size=4, num_workers=2, rank=1, shuffle=False, map_fn=look
        )
        run(part)
        assert sorted(seen) == [2, 3, 6, 7]


def test_steps_limit_an_epoch():
    for source in (np.arange(10), tf.data.Dataset.range(10), unknown_size(10)):
        part = data.make_dataset(source, global_batch_size=4, steps=2)
        assert data.steps_per_epoch(part) == len(run(part)) == 2
