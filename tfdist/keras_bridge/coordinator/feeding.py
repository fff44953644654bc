"""Which batches a coordinator's steps get, and who reads them.

    what `fit` is given                       who reads it        each batch
    ----------------------------------------  ------------------  -----------------------------------
    arrays, a generator, a PyDataset          the coordinator     once an epoch, by whichever worker is
    a tf.data.Dataset that ends               the coordinator     free; a failed worker's goes to another
    an endless tf.data.Dataset (.repeat())    every worker        worker i of n reads batches i, i + n, ...
    a function of tf.distribute.InputContext  every worker        as the function says

What workers read never passes through the coordinator, so that is for large data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.trainers.data_adapters import get_data_adapter

from tfdist.errors import DataError, UnsupportedError, explain
from tfdist.keras_bridge.coordinator import looking

__all__ = ["CoordinatorEpochIterator", "Feed"]

_StockEpochIterator: Any = keras_trainer.TFEpochIterator


class Feed:
    """What the next execution takes its batches from.

    Attributes:
        per_worker: the workers' own iterators, or None where the coordinator reads.
        steps: how many batches the execution takes, at most.
    """

    def __init__(self, source: _Reading, steps: int) -> None:
        self._source = source
        self.per_worker = source.per_worker
        self.steps = steps

    def take(self) -> list[Any]:
        """Returns the next batches, at least one.

        Raises:
            tf.errors.OutOfRangeError: if there is none.
        """
        return self._source.take(self.steps)

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        """Returns the next batch, as Keras' predict asks for it."""
        return next(self._source)


class _Reading:
    """One pass over the data."""

    def __init__(self, per_worker: Any = None, batches: Any = None) -> None:
        self.per_worker = per_worker
        self._batches: Iterator[Any] = iter(batches) if batches is not None else iter(())
        self.look_ahead: Callable[[Iterator[Any]], Iterator[Any]] | None = None
        self._ahead: Iterator[Any] | None = None

    def __iter__(self) -> _Reading:
        return self

    def take(self, most: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < most:
            try:
                taken.append(next(self._batches))
            except StopIteration:
                break
        if not taken:
            raise tf.errors.OutOfRangeError(None, None, "The data has ended")
        return taken

    def __next__(self) -> Any:
        if self.look_ahead is None:
            return next(self._batches)
        if self._ahead is None:
            self._ahead = self.look_ahead(self._batches)
        return next(self._ahead)


class CoordinatorEpochIterator(_StockEpochIterator):
    """Yields `Feed`s to Keras' loops; stands in for its `TFEpochIterator`."""

    def __init__(self, distribute_strategy: Any, x: Any = None, **kwargs: Any) -> None:
        """Finds out who reads the data.

        Args:
            distribute_strategy: a tfdist strategy that coordinates.
            x: the data, as in `fit`, or a function of a `tf.distribute.InputContext`.
            **kwargs: what Keras' epoch iterator takes.

        Raises:
            DataError: the data is endless and no number of steps is given, or too short for it.
            UnsupportedError: the workers would read data that can't be sent to them.
        """
        from tfdist.keras_bridge.epochs import check_steps

        self._distribute_strategy = distribute_strategy
        self._workers = distribute_strategy.tfdist.pool.num_workers
        self._options = {name: kwargs.get(name) for name in ("class_weight", "steps_per_epoch")}
        self._begins = False
        look_ahead = looking.current()
        self._look_ahead = look_ahead
        source = distribute_strategy.tfdist.undistributed(x)
        x = x if source is None else source
        self._function = x if _is_function(x) else None
        if self._function is not None:
            x = self._dataset_of(0)
        super(_StockEpochIterator, self).__init__(x=x, **kwargs)
        self._dataset = self.data_adapter.get_tf_dataset()
        self._is_endless = check_steps(self._dataset, self.steps_per_epoch)
        # Only `fit` names class weights. `evaluate` and `predict` see the first batches, in order.
        trains = "class_weight" in kwargs
        self._workers_read = (
            trains
            and (self._function is not None or self._is_endless)
            and not distribute_strategy.tfdist.synchronous
        )
        if self._workers_read and not self.steps_per_epoch:
            raise DataError(
                explain(
                    "Data that the workers read needs a number of steps: who reads what is not "
                    "known to the coordinator",
                    received="a dataset function and no steps",
                    fix="Pass steps_per_epoch to fit (steps to evaluate and predict)",
                )
            )
        if self._function is not None and distribute_strategy.tfdist.synchronous:
            shares = [self._adapted(self._dataset_of(i)) for i in range(self._workers)]
            self._dataset = _joined(shares)

    def _dataset_of(self, index: int) -> tf.data.Dataset:
        assert self._function is not None
        synchronous = self._distribute_strategy.tfdist.synchronous
        dataset = self._function(
            tf.distribute.InputContext(
                num_input_pipelines=self._workers,
                input_pipeline_id=index,
                num_replicas_in_sync=self._workers if synchronous else 1,
            )
        )
        if not isinstance(dataset, tf.data.Dataset):
            raise DataError(
                explain(
                    "A function given to `fit` must return a tf.data.Dataset",
                    received=type(dataset).__name__,
                    fix="Return the batched dataset of one worker: "
                    "lambda context: make(context.input_pipeline_id)",
                )
            )
        return dataset

    def _adapted(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        return get_data_adapter(x=dataset, **self._options).get_tf_dataset()

    def _of_worker(self, index: int) -> tf.data.Dataset:
        if self._function is not None:
            return self._adapted(self._dataset_of(index))
        if self._workers == 1:
            return self._dataset
        return self._dataset.shard(self._workers, index)

    @property
    def data_spec(self) -> Any:
        """The structure of the data, as `tf.TypeSpec`s with an unknown number of rows."""
        from tfdist.keras_bridge.input import data_spec

        return data_spec(self._dataset.element_spec)

    def __iter__(self) -> CoordinatorEpochIterator:
        self._begins = True
        return super().__iter__()

    def __next__(self) -> tuple[int, int, Feed]:
        begin, end, reading = next(self._epoch_iterator)
        reading.look_ahead = self._look_ahead
        return begin, end, Feed(reading, self._steps_left(begin))

    def _get_iterator(self) -> Any:
        begins, self._begins = self._begins, False
        if not begins and self.steps_per_epoch is None:
            # Keras begins a pass when an epoch ends, and drops it. It counts for a dataset that
            # reshuffles.
            iter(self._dataset)
            return ()
        pool = self._distribute_strategy.tfdist.pool
        if not self._workers_read:
            return _Reading(batches=self._dataset)
        try:
            return _Reading(per_worker=pool.per_worker(self._of_worker))
        except tf.errors.OpError as error:
            raise UnsupportedError(
                explain(
                    "The dataset can't be sent to the workers",
                    received=str(error).splitlines()[0],
                    fix="Give `fit` a function of a tf.distribute.InputContext that makes it, or "
                    "leave out .repeat() so that the coordinator reads it",
                )
            ) from None

    def _steps_left(self, begin: int) -> int:
        limits = [self.steps_per_execution]
        if self.steps_per_epoch:
            limits.append(self.steps_per_epoch - begin)
        return max(min(limits), 1)


def _is_function(x: Any) -> bool:
    return (
        callable(x)
        and not isinstance(x, (keras.utils.PyDataset, tf.data.Dataset, type))
        and not hasattr(x, "__getitem__")
        and not hasattr(x, "shape")
    )


def _joined(shares: list[tf.data.Dataset]) -> tf.data.Dataset:
    """Returns the global batches that the workers' own batches make up."""

    def join(*parts: Any) -> Any:
        return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *parts)

    return tf.data.Dataset.zip(tuple(shares)).map(join)
