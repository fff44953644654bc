"""Every kind of source, and what each refuses."""

import numpy as np
import pytest
import tensorflow as tf
from sharing import job, run

from tfdist import data
from tfdist.data import streams
from tfdist.errors import ConfigError, DataError, TfdistError

BATCH = {"global_batch_size": 4}
TWO = {**BATCH, "num_workers": 2}


def numbers(rows=10):
    return tf.data.Dataset.range(rows)


def generator(rows=10):
    return tf.data.Dataset.from_generator(
        lambda: iter(range(rows)), output_signature=tf.TensorSpec((), tf.int64)
    )


def function(context):
    """The usual input function: this worker's rows, in batches of one replica."""
    own = numbers(10).shard(context.num_input_pipelines, context.input_pipeline_id)
    return own.batch(context.get_per_replica_batch_size(4))


# name: source, arguments, pattern of the message
REFUSED = {
    "a list": ([1, 2], {}, r"of no known kind\. Received: list\. Use numpy\.array"),
    "a number": (7, {}, r"Received: int\. Give a TFDS name"),
    "a generator": ((i for i in range(3)), {}, "Dataset.from_generator"),
    "a generator function": (lambda: iter([1]), {}, "must take one tf.distribute.InputContext"),
    "a function of something else": (lambda a, b: a, {}, "must take one tf.distribute"),
    "a function that returns no dataset": (lambda context: 3, {}, "must return a tf.data.Dataset"),
    "a function that returns scalars": (
        lambda context: numbers(),
        {},
        r"must return batches.*shape=\(\).*get_per_replica_batch_size.*batched=False",
    ),
    "a function that returns rows": (
        lambda context: tf.data.Dataset.from_tensor_slices((np.zeros((8, 3)), np.zeros((8, 2)))),
        {},
        "must return batches",
    ),
    "a class": (dict, {}, "of no known kind"),
    "no rows": (np.zeros((0, 3)), {}, "has no rows"),
    "an empty dataset": (numbers(0), {}, "has no rows"),
    "no arrays": ((), {}, "has no arrays"),
    "a scalar": (np.float32(3), {}, "not an array with rows"),
    "unequal rows": (
        {"x": np.zeros(3), "y": np.zeros(4)},
        {},
        r"rows data\['x'\]: 3, data\['y'\]: 4",
    ),
    "a list in a tuple": ((np.zeros(3), [1, 2, 3]), {}, r"a list of 3 at data\[1\]"),
    "objects": ((np.zeros(2), np.array([{}, {}])), {}, r"data\[1\] is not an array.*dtype object"),
    "batched twice": (numbers().batch(4), {}, r"batched already.*TensorSpec\(shape=\(None,\)"),
    "batched, then prefetched": (numbers().batch(4).prefetch(1).repeat(), {}, "batched already"),
    "batched with a fixed size": (numbers().batch(4, drop_remainder=True), {}, "batched already"),
    "batched, then mapped": (numbers().batch(4).map(lambda x: x * 2), {}, "batched already"),
    "padded batches": (numbers().padded_batch(4), {}, "batched already"),
    "other batches": (numbers().batch(3), {"batched": True}, "batches of 3; expected 4"),
    "batched arrays": (np.zeros(4), {"batched": True}, "never batched already"),
    "a row function for batches": (
        numbers().batch(4),
        {"batched": True, "map_fn": lambda x: x},
        "takes single rows",
    ),
    "a slice of arrays": (
        np.zeros(4),
        {"split": "train[:50%]"},
        "Only TFDS data sets can be sliced",
    ),
    "TFDS options": (
        np.zeros(4),
        {"as_supervised": True},
        "as_supervised with a source of type nd",
    ),
    "a batch that is no number": (np.zeros(4), {"global_batch_size": "8"}, "positive integer"),
    "more batch than rows": (np.zeros(3), {"drop_remainder": True}, r"leaves nothing.*rows=3"),
    "too many steps": (np.zeros(10), {"steps": 4}, r"fewer steps.*steps=4; there are 3"),
    "no steps": (np.zeros(10), {"steps": 0}, "`steps` must be an integer from 1"),
    "a seed that is no number": (np.zeros(10), {"seed": "x"}, "`seed` must be"),
    "an unknown option": (np.zeros(4), {"shufle": True}, "shufle.*[Dd]id you mean 'shuffle'"),
    "an unknown shard": (np.zeros(4), {"shard": "auto"}, "`shard` must be"),
    "a batch that the replicas can't share": (
        np.zeros(8),
        {"local_replicas": 3},
        "global_batch_size=4, replicas=3. Use a multiple of 3",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_source_is_one_clear_error(name):
    source, arguments, message = REFUSED[name]
    with pytest.raises(TfdistError, match=message) as caught:
        data.make_dataset(source, **{**BATCH, **arguments})
    assert isinstance(caught.value, (DataError, ConfigError))


REFUSED_OF_SEVERAL = {
    "shuffled without a seed": (numbers().shuffle(10), {}, "shuffled without a seed"),
    "the same under a map": (numbers().shuffle(10).map(lambda x: x), {}, "without a seed"),
    "own data of unknown size": (generator(), {"shard": "local"}, "must have a known size"),
    "a function's data of unknown size": (
        lambda context: generator().batch(2),
        {},
        "must have a known size",
    ),
    "a function that batches by the global size": (
        lambda context: numbers().batch(4),
        {},
        r"batches of 4; expected 2",
    ),
    "a function that does not batch": (
        lambda context: numbers().batch(2),
        {"batched": False},
        "batched already",
    ),
    "a batch that the workers can't share": (np.zeros(8), {"global_batch_size": 5}, "5, workers=2"),
}


@pytest.mark.parametrize("name", REFUSED_OF_SEVERAL)
def test_several_workers_refuse_more(name):
    source, arguments, message = REFUSED_OF_SEVERAL[name]
    with pytest.raises(DataError, match=message):
        data.make_dataset(source, **{**TWO, **arguments})


def test_a_distributed_dataset_is_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    distributed = strategy.experimental_distribute_dataset(numbers().batch(4))
    with pytest.raises(DataError, match=r"Give the tf\.data\.Dataset itself"):
        data.make_dataset(distributed, **BATCH)


def test_rows_that_look_like_batches_are_rows_when_said():
    assert run(data.make_dataset(numbers(8).batch(2), batched=False, shuffle=False, **BATCH)) == [
        [[0, 1], [2, 3], [4, 5], [6, 7]]
    ]


def test_text_cut_into_sequences_is_not_taken_for_batches():
    sequences = numbers(40).batch(5, drop_remainder=True).map(lambda x: (x[:-1], x[1:]))
    assert len(job(sequences, 2, **BATCH)[0]) == 2


@pytest.mark.parametrize(
    ("dataset", "size"),
    [
        (numbers().batch(4), 4),
        (numbers().batch(4).map(lambda x: x).prefetch(2), 4),
        (numbers().padded_batch(3), 3),
        (numbers().batch(4, num_parallel_calls=2), 4),
        (numbers().batch(4).unbatch(), None),
        (numbers(), None),
    ],
)
def test_the_size_of_batches_is_found(dataset, size):
    assert streams.batch_size_of(dataset) == size


def test_global_batches_are_divided():
    for rows in (8, 9, 11):
        batches = numbers(rows).batch(4)
        together = job(batches, 2, batched=True, **BATCH)
        assert together == [[[batch.tolist()] for batch in batches.as_numpy_iterator()]]


def test_padded_batches_keep_their_width_on_all_workers():
    lengths = tf.data.Dataset.range(1, 9).map(lambda n: tf.range(n)).padded_batch(4)
    together = job(lengths, 2, batched=True, **BATCH)
    assert together == [[[batch.tolist()] for batch in lengths.as_numpy_iterator()]]


def test_a_batch_that_is_too_large_is_an_error_in_the_step():
    def grow(batch):
        return tf.concat([batch, batch], axis=0)

    part = data.make_dataset(numbers(4).batch(4).map(grow), batched=True, **TWO)
    with pytest.raises(tf.errors.InvalidArgumentError, match="more rows than global_batch_size"):
        run(part)


def test_a_function_brings_each_workers_own_batches():
    parts = [run(data.make_dataset(function, rank=rank, **TWO)) for rank in range(2)]
    assert parts == [[[0, 2], [4, 6], [8]], [[1, 3], [5, 7], [9]]]


def test_a_function_batches_for_a_replica():
    seen = []

    def look(context):
        seen.append((context.num_input_pipelines, context.num_replicas_in_sync))
        return function(context)

    part = data.make_dataset(look, rank=1, local_replicas=2, **TWO)
    assert seen == [(2, 4)]
    assert run(part) == [[1, 3], [5, 7], [9]]
    assert run(data.make_dataset(function, local_replicas=4, **BATCH)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


def test_a_functions_batches_are_counted_where_they_can_be():
    def counted(make):
        return int(data.make_dataset(make, local_replicas=2, **BATCH).cardinality())

    rows = numbers(10)
    assert counted(lambda context: rows.batch(context.get_per_replica_batch_size(4))) == 3
    assert counted(lambda context: rows.batch(4)) == 3
    assert counted(lambda context: rows.batch(2, drop_remainder=True)) == 3
    assert counted(lambda context: rows.repeat().batch(2)) == tf.data.INFINITE_CARDINALITY
    unknown = rows.filter(lambda x: x > 2).batch(2)
    assert counted(lambda context: unknown) == tf.data.UNKNOWN_CARDINALITY


def test_a_function_may_generate_batches():
    batches = tf.data.Dataset.from_generator(
        lambda: iter(np.arange(8).reshape(4, 2)), output_signature=tf.TensorSpec((None,), tf.int64)
    )
    made = data.make_dataset(lambda context: batches, local_replicas=2, **BATCH)
    assert run(made) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_function_may_return_rows():
    part = data.make_dataset(
        lambda context: numbers(6), batched=False, shuffle=False, map_fn=lambda x: -x, **TWO
    )
    assert run(part) == [[0, -1], [-2, -3], [-4, -5]]


def test_own_data_is_read_whole_by_each_worker():
    for source in (np.arange(6), numbers(6)):
        arguments = {**TWO, "shard": "local", "seed": 4}
        parts = [run(data.make_dataset(source, rank=rank, **arguments)) for rank in (0, 1)]
        for part in parts:
            assert [len(batch) for batch in part] == [2, 2, 2]
            assert sorted(sum(part, [])) == list(range(6))
        assert parts[0] != parts[1], "workers that draw their own rows shuffle differently"


def test_without_sharding_every_worker_reads_everything():
    parts = [
        run(data.make_dataset(numbers(6), rank=rank, shard="none", seed=4, **TWO))
        for rank in (0, 1)
    ]
    assert sorted(sum(parts[0], [])) == sorted(sum(parts[1], [])) == list(range(6))
    assert parts[0] != parts[1]


def test_one_worker_is_not_sharded_whatever_is_said():
    expected = run(data.make_dataset(np.arange(6), seed=4, **BATCH))
    for shard in ("local", "none"):
        assert run(data.make_dataset(np.arange(6), seed=4, shard=shard, **BATCH)) == expected


def test_steps_give_own_data_of_unknown_size_its_size():
    part = data.make_dataset(generator(6), shard="local", steps=5, shuffle=False, **TWO)
    assert run(part) == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    assert data.steps_per_epoch(part) == 5


def test_data_without_end_stays_so():
    endless = numbers(6).repeat()
    part = data.make_dataset(endless, shuffle=False, steps=7, rank=1, **TWO)
    assert run(part, 4) == [[2, 3], [0, 1], [4, 5], [2, 3]]
    assert part.cardinality() == tf.data.INFINITE_CARDINALITY
    assert data.steps_per_epoch(part) == 7


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (numbers().repeat(), "The data never ends"),
        (generator(), "The size of the data is unknown"),
    ],
)
def test_the_steps_of_unknown_data_are_asked_for(dataset, message):
    with pytest.raises(DataError, match=message):
        data.steps_per_epoch(data.make_dataset(dataset, **BATCH))


def test_the_steps_of_any_dataset():
    assert data.steps_per_epoch(numbers(10).batch(4)) == 3
    assert data.steps_per_epoch(data.make_dataset(np.arange(10), **TWO)) == 3


def test_dropped_rows_are_told(caplog):
    data.make_dataset(np.arange(10), drop_remainder=True, **BATCH)
    assert "drop_remainder leaves out 2 of 10 rows" in caplog.text


def test_what_is_known_of_the_data():
    part = data.make_dataset(np.arange(10), rank=1, **TWO)
    assert data.info_of(part) == data.DataInfo(10, 3, 4, 2, 1, "arrays")
    assert data.info_of(part.map(lambda x: x)) is None
