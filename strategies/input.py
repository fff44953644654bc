"""What the bridge needs of tf.distribute's input pipeline that has no public name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute
from tensorflow.python.data.ops import multi_device_iterator_ops
from tensorflow.python.distribute import input_lib

__all__ = ["deal", "file_sharding_problem", "undistributed", "without_autotuner"]


def deal(strategy: Any, make_dataset: Callable[[Any], tf.data.Dataset], uneven: bool) -> Any:
    """Deals the elements of each worker's dataset to its replicas, one each per step.

    Args:
        strategy: the strategy.
        make_dataset: from a `tf.distribute.InputContext` to this worker's dataset.
        uneven: whether workers may run out at different steps. Then those that have run out get
            elements with no rows until all have; it costs a small collective per step. Otherwise
            no step asks the other workers whether they have data.

    Returns:
        A distributed dataset.
    """
    dataset = strategy.distribute_datasets_from_function(
        lambda context: without_autotuner(make_dataset(context))
    )
    # Stands in for `tf.distribute.InputOptions`, which can't turn partial-batch handling off.
    dataset._enable_get_next_as_optional = uneven
    return dataset


def without_autotuner(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns tf.data's autotuning thread off for a dataset.

    Deleting an iterator waits for that thread, which can miss that it is told to end (a
    CancellationManager says "cancelled" only after it has woken the waiting) and sleeps on, up to a
    minute: one worker stands still, holding Python's lock, and all others wait for it. AUTOTUNE
    then means one parallel call per thread of the pool, at most 16.
    """
    _end_at_once()
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@functools.cache
def _end_at_once() -> None:
    """Does the same for the datasets that tf.distribute makes to copy elements to each device.

    They have nothing to tune, and no public way to give them options.
    """
    original = multi_device_iterator_ops._create_device_dataset
    multi_device_iterator_ops._create_device_dataset = lambda *args, **kwargs: without_autotuner(
        original(*args, **kwargs)
    )


def undistributed(dataset: Any) -> tf.data.Dataset | Callable[[Any], tf.data.Dataset] | None:
    """Returns what a distributed dataset was made of, so that it can be distributed anew.

    Args:
        dataset: the result of `experimental_distribute_dataset` or
            `distribute_datasets_from_function`.

    Returns:
        The global dataset, or the function of an input context that makes a worker's dataset of
        per-replica batches, or None if `dataset` is neither.
    """
    if isinstance(dataset, input_lib.DistributedDataset):
        return dataset._original_dataset
    if isinstance(dataset, input_lib.DistributedDatasetsFromFunction):
        return dataset._dataset_fn
    return None


def file_sharding_problem(dataset: tf.data.Dataset, num_workers: int, rank: int) -> str:
    """Returns why a dataset can't be sharded by files, or "" when it can.

    tf.distribute finds out in the first step, inside a collective, on one worker. This does the
    same to the dataset alone and reads its first element.

    Args:
        dataset: a dataset whose `auto_shard_policy` is FILE.
        num_workers: how many workers share the files.
        rank: this worker.
    """
    try:
        sharded = distribute._AutoShardDataset(dataset, num_workers, rank, num_workers)
        next(iter(sharded.take(1)), None)
    except tf.errors.OpError as error:
        text = str(error.message).splitlines()[0]
        return text.split("}} ", 1)[-1].split(": goo.gle/debug", 1)[0][:200]
    return ""
