"""Helpers of the data tests: runs all workers of a job in this process and compares their rows."""

from itertools import chain

import numpy as np
import tensorflow as tf

from tfdist import data


def columns(batch):
    """The components of a batch, each a list of its rows as plain Python values."""

    def plain(item):
        if isinstance(item, tf.SparseTensor):
            item = tf.sparse.to_dense(item)
        if isinstance(item, tf.RaggedTensor):
            return item.to_list()
        return np.asarray(item).tolist()

    return [plain(item) for item in tf.nest.flatten(batch)]


def run(dataset, limit=None):
    """The batches of one pass, of data with one component."""
    return [columns(batch)[0] for batch in (dataset if limit is None else dataset.take(limit))]


def job(source, workers, epochs=1, limit=None, **arguments):
    """Epochs of global steps, each a list of columns of rows, as `workers` workers read them."""
    datasets = [
        data.make_dataset(source, num_workers=workers, rank=rank, **arguments)
        for rank in range(workers)
    ]
    result = []
    for _ in range(epochs):
        passes = [[columns(batch) for batch in dataset.take(limit or -1)] for dataset in datasets]
        assert len({len(batches) for batches in passes}) == 1, "unequal numbers of steps"
        result.append([[list(chain(*rows)) for rows in zip(*parts)] for parts in zip(*passes)])
    return result


def order(epoch):
    """The rows of an epoch's first component, over its steps."""
    return list(chain(*(step[0] for step in epoch)))
