"""The table of which worker gets which rows."""

import numpy as np
import tensorflow as tf
from sharing import run

from tfdist import data

ARGUMENTS = {"num_workers": 2, "global_batch_size": 4}


def test_it_shows_the_rows_that_training_would_read():
    for source in (np.arange(9), tf.data.Dataset.range(9)):
        preview = data.preview_shards(source, steps=10, seed=3, **ARGUMENTS)
        for rank in range(2):
            part = data.make_dataset(source, rank=rank, seed=3, **ARGUMENTS)
            assert preview.rows[rank] == run(part)


def test_the_table():
    preview = data.preview_shards(
        np.zeros((40, 2)), steps=2, shuffle=False, num_workers=2, global_batch_size=16
    )
    assert str(preview) == (
        "arrays: global batch 16, 3 steps per epoch\n"
        "worker 0   8 rows: 0, 1, 2, 3, 4, 5, ... | 8 rows: 16, 17, 18, 19, 20, 21, ...\n"
        "worker 1   8 rows: 8, 9, 10, 11, 12, 13, ... | 8 rows: 24, 25, 26, 27, 28, 29, ..."
    )


def test_batches_and_functions():
    batches = data.preview_shards(tf.data.Dataset.range(9).batch(4), batched=True, **ARGUMENTS)
    assert batches.rows == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], []]]

    def function(context):
        return tf.data.Dataset.range(3 + context.input_pipeline_id).batch(2)

    own = data.preview_shards(function, **ARGUMENTS)
    assert own.rows == [[[0, 1], [2]], [[0, 1], [2, 3]]]
    assert "none" in str(data.preview_shards(np.arange(5), **ARGUMENTS))


def test_rows_are_not_decoded():
    def never(row):
        raise AssertionError

    data.preview_shards(np.arange(4), map_fn=never, **ARGUMENTS)
