"""Keras' epoch iterator, over the bridge's own distribution of the data."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer as keras_trainer
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from tfdist.errors import DataError, explain
from tfdist.keras_bridge import input as step_input
from tfdist.keras_bridge.steps import StepIterator

__all__ = ["BridgedEpochIterator", "check_steps"]

_StockEpochIterator: Any = keras_trainer.TFEpochIterator


def check_steps(dataset: tf.data.Dataset, steps: int | None) -> bool:
    """Refuses data that can't fill an epoch; returns whether it is endless.

    Args:
        dataset: the batches.
        steps: how many of them make an epoch, or None for all.

    Raises:
        DataError: if the data is endless and no number of steps is given, or too short for it.
    """
    cardinality = int(dataset.cardinality().numpy())
    if cardinality == tf.data.INFINITE_CARDINALITY and not steps:
        raise DataError(
            explain(
                "An endless dataset needs a number of steps, or its first epoch never ends",
                received="a dataset of infinite cardinality and no steps",
                fix="Pass steps_per_epoch to fit (steps to evaluate and predict, "
                "validation_steps for validation_data)",
            )
        )
    if steps and 0 <= cardinality < steps:
        raise DataError(
            explain(
                "The dataset is shorter than one epoch",
                received=f"{cardinality} batches, {steps} steps",
                fix="Lower the number of steps, or call .repeat() on the dataset",
            )
        )
    return cardinality == tf.data.INFINITE_CARDINALITY


class BridgedEpochIterator(_StockEpochIterator):
    """Yields `StepIterator`s; every worker takes the same number of steps.

    Stands in for Keras' `TFEpochIterator`, which leaves the last uneven batch, and the workers'
    sharding, to tf.distribute's guess.
    """

    def __init__(self, distribute_strategy: Any, x: Any = None, **kwargs: Any) -> None:
        """Distributes the data.

        Args:
            distribute_strategy: a tfdist strategy.
            x: the data, as in `fit`.
            **kwargs: what Keras' epoch iterator takes.

        Raises:
            DataError: if the data is endless and no number of steps is given, or too short for it.
        """
        self._distribute_strategy = distribute_strategy
        self._order_seed: int | None = None
        self._passes = 0
        self._begins = False  # whether the next pass that Keras asks for is an epoch's own
        source = distribute_strategy.tfdist.undistributed(x)
        per_replica = source is not None and not isinstance(source, tf.data.Dataset)
        if per_replica:
            source = source(self._input_context())
        # Past Keras' own class, whose __init__ distributes the data.
        super(_StockEpochIterator, self).__init__(x=x if source is None else source, **kwargs)
        with self._same_shuffle_on_all_workers(kwargs.get("shuffle", False)):
            dataset = self.data_adapter.get_tf_dataset()
        self._is_endless = check_steps(dataset, self.steps_per_epoch)
        self._source = dataset
        self._input = step_input.build_input(distribute_strategy, dataset, per_replica)
        if self._input.num_batches is not None:
            self._num_batches = self._input.num_batches
        self._distributed_dataset = self._input.dataset

    def _input_context(self) -> tf.distribute.InputContext:
        strategy = self._distribute_strategy
        return tf.distribute.InputContext(
            num_input_pipelines=strategy.tfdist.num_workers,
            input_pipeline_id=strategy.tfdist.rank,
            num_replicas_in_sync=strategy.num_replicas_in_sync,
        )

    @contextlib.contextmanager
    def _same_shuffle_on_all_workers(self, shuffle: Any) -> Iterator[None]:
        """Gives all workers the chief's seed while Keras builds its shuffles.

        Each worker takes its rows of every global batch, so the order must be common to all.
        """
        strategy = self._distribute_strategy
        if not shuffle or strategy.tfdist.num_workers == 1:
            yield
            return
        present = strategy.tfdist.present_seed()
        own = random.randrange(2**31)
        offers = strategy.tfdist.exchange("shuffle seed", f"{present},{own}")
        seeds = {offer.split(",")[0] for offer in offers}
        if len(seeds) == 1 and present is not None:
            yield  # all were seeded alike: the order is one device's
            return
        self._order_seed = seed = int(offers[0].split(",")[1])
        random.seed(seed)  # which orders the batches of a PyDataset
        with strategy.tfdist.global_seed(seed):
            yield

    def reset(self) -> None:
        """Starts over, with the number of batches that the workers agreed on."""
        super().reset()
        if self._input.num_batches is not None:
            self._num_batches = self._input.num_batches

    @property
    def data_spec(self) -> Any:
        """The structure of the data, as `tf.TensorSpec`s with an unknown number of rows."""
        return self._input.data_spec

    def __iter__(self) -> BridgedEpochIterator:
        self._begins = True
        return super().__iter__()

    def __next__(self) -> tuple[int, int, StepIterator]:
        begin, end, iterator = next(self._epoch_iterator)
        return begin, end, StepIterator(iterator, self._steps_left(begin))

    def _get_iterator(self) -> Any:
        """Gives arrays an order of their own in each pass, where nobody has seeded the workers.

        Keras' shuffle of arrays has the same order in every pass once it has a seed.

        Keras also begins a pass when an epoch ends, and drops it when the next one begins. It only
        counts for a dataset that reshuffles, so it is begun there, and not dealt to the replicas,
        which takes a tenth of a second.
        """
        begins, self._begins = self._begins, False
        if not begins and self.steps_per_epoch is None:
            iter(self._source)
            return ()
        if (
            self._passes
            and self._order_seed is not None
            and isinstance(self.data_adapter, ArrayDataAdapter)
        ):
            strategy = self._distribute_strategy
            with strategy.tfdist.global_seed((self._order_seed + self._passes) % 2**31):
                dataset = self.data_adapter.get_tf_dataset()
            self._distributed_dataset = step_input.build_input(strategy, dataset).dataset
        self._passes += 1
        return self._distributed_dataset

    def _steps_left(self, begin: int) -> int | None:
        """Returns how many steps the next execution has for sure, or None when unknown."""
        limits = [self.steps_per_execution]
        if self.steps_per_epoch:
            limits.append(self.steps_per_epoch - begin)
        if self._num_batches:
            seen = self._steps_seen - self.steps_per_execution
            limits.append(self._num_batches - seen)
        elif not self._is_endless and self.steps_per_execution > 1:
            return None
        return max(min(limits), 1)
