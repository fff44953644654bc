"""The workers of a coordinator: steps are handed to whichever is free, and followed to their end.

Around `tf.distribute.coordinator.ClusterCoordinator`, which gives a failed worker's step to another
one, this adds deadlines, a limit of steps ahead, a line for each task that goes or comes back, and
errors that name the task. What has no public name there (whether a result has arrived, iterators that
differ between workers) is used in this module only.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator import values as coordinator_values

from tfdist import serving
from tfdist.cluster import Cluster
from tfdist.errors import ClusterError
from tfdist.strategies.task_watch import TaskWatch

__all__ = ["Pending", "WorkerPool"]

_LOOK = 0.5  # seconds between two looks at the health of the cluster while waiting
_SLICE = 0.02  # seconds to wait for the oldest step before looking at the others
_THREADS = ("WorkerClosureProcessingLoop", "WorkerPreemptionHandler")  # the coordinator's
_END = 2.0  # seconds in which the coordinator's threads end
_NOTICE = 8.0  # seconds in which the watch finds out which task an error came from


class Pending:
    """A step that was handed out."""

    def __init__(self, pool: WorkerPool, value: Any) -> None:
        self._pool = pool
        self._value = value

    @property
    def is_done(self) -> bool:
        """Whether its result, or its error, is there."""
        return bool(self._value._status_available_event.is_set())

    def result(self) -> Any:
        """Waits for the step.

        Returns:
            What its function returned, as tensors on the coordinator.

        Raises:
            ClusterError: if the cluster can't do it any more.
        """
        while not self._value._status_available_event.wait(_LOOK):
            self._pool.check()
        with self._pool.explained():
            return self._value.get()

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds; returns whether the step is done."""
        return bool(self._value._status_available_event.wait(timeout))


class WorkerPool:
    """Hands steps to the workers of a parameter server cluster.

    Attributes:
        num_workers: tasks of role worker, dead ones included.
        in_flight: steps that may be scheduled ahead for each worker.
    """

    def __init__(self, strategy: Any, cluster: Cluster, in_flight: int, timeout: float) -> None:
        """Starts to watch the tasks.

        Args:
            strategy: a `tf.distribute.ParameterServerStrategy`.
            cluster: its cluster.
            in_flight: steps scheduled ahead for each worker, at most.
            timeout: seconds to wait when no worker is left.
        """
        self.num_workers = len(cluster.jobs["worker"])
        self.in_flight = in_flight
        self._strategy = strategy
        self._watch = TaskWatch(cluster, timeout)
        tf.get_logger().addFilter(_is_not_the_coordinators)
        self._outstanding: collections.deque[Pending] = collections.deque()
        atexit.register(self.close)

    @property
    def coordinator(self) -> tf.distribute.coordinator.ClusterCoordinator:
        """TensorFlow's own coordinator."""
        return tf.distribute.coordinator.ClusterCoordinator(self._strategy)

    def schedule(self, function: Any, args: Sequence[Any] = ()) -> Pending:
        """Hands a step to the next free worker, without waiting for it.

        Args:
            function: a `tf.function`. It runs at least once: again, on another worker, if its worker
                fails in the middle.
            args: its arguments; those of `per_worker` are each worker's own.

        Returns:
            The pending step.
        """
        self.check()
        with self.explained():
            pending = Pending(self, self.coordinator.schedule(function, args=tuple(args)))
        self._outstanding.append(pending)
        return pending

    def reserve(self) -> None:
        """Waits until there is room for a step: `in_flight` for each worker are scheduled ahead."""
        looked = time.monotonic()
        while True:
            self._forget_done()
            if len(self._outstanding) < self.in_flight * self.num_workers:
                return
            self._outstanding[0].wait(_SLICE)
            if time.monotonic() - looked > _LOOK:
                self.check()
                looked = time.monotonic()

    def settle(self) -> None:
        """Waits until every step that was scheduled has been done."""
        while self._outstanding:
            self._outstanding[0].result()
            self._forget_done()

    def abandon(self) -> None:
        """Forgets the steps that are outstanding, after a failure."""
        self._outstanding.clear()

    def _forget_done(self) -> None:
        """Drops steps that are done; raises the error of one that failed."""
        kept: collections.deque[Pending] = collections.deque()
        for pending in self._outstanding:
            if pending.is_done:
                pending.result()
            else:
                kept.append(pending)
        self._outstanding = kept

    def per_worker(self, make_dataset: Callable[[int], tf.data.Dataset]) -> Any:
        """Makes an iterator on each worker, over a dataset of its own.

        A worker that comes back after a failure starts its iterator over.

        Args:
            make_dataset: called on the coordinator with the worker's index; what it returns is
                built on the worker, so that its data never passes through the coordinator.

        Returns:
            An argument for `schedule`; the function gets the iterator of the worker it runs on.
        """
        results = []
        for worker in self.coordinator._cluster.workers:
            dataset = make_dataset(worker.worker_index)
            function = _remote_dataset(dataset)
            value = worker.create_resource(_iterator_maker(function))
            value._type_spec = input_lib.get_iterator_spec_from_dataset(
                self._strategy, function.structured_outputs
            )
            results.append(value)
        return coordinator_values.PerWorkerDistributedIterator(tuple(results))

    def check(self) -> None:
        """Raises what makes it useless to wait.

        Raises:
            ClusterError: a parameter server is gone, or all workers have been for too long.
        """
        failure = self._watch.failure
        if failure is not None:
            self.abandon()
            raise ClusterError(failure)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Puts the failure of a task in the place of the errors that TensorFlow raises for it.

        Raises:
            ClusterError: naming the task.
        """
        try:
            yield
        except ClusterError:
            raise
        except Exception as error:
            self.abandon()
            if _may_be_a_lost_task(error):
                until = time.monotonic() + _NOTICE
                while self._watch.failure is None and time.monotonic() < until:
                    time.sleep(0.1)
            if self._watch.failure is not None:
                raise ClusterError(self._watch.failure) from None
            # The other steps may fail alike: nobody shall hear of it in the next `fit`.
            with contextlib.suppress(Exception):
                self.coordinator.join()
            raise

    def close(self) -> None:
        """Stops watching, and ends the coordinator's threads: they must not outlive Python."""
        self._watch.close()
        coordinator = self._strategy._cluster_coordinator
        if coordinator is None:
            return
        threading.excepthook = _ignore_stopped_threads
        # In a thread, because it waits for the coordinator's recovery, which waits for lost workers.
        stop = threading.Thread(target=coordinator._cluster.stop, name="tfdist-stop", daemon=True)
        stop.start()
        until = time.monotonic() + _END
        threads = [one for one in threading.enumerate() if one.name.startswith(_THREADS)]
        for thread in (stop, *threads):
            thread.join(timeout=max(until - time.monotonic(), 0.0))
        if self._watch.gone or any(thread.is_alive() for thread in (stop, *threads)):
            serving.leave_at_once()


def _is_not_the_coordinators(record: logging.LogRecord) -> bool:
    """Drops TensorFlow's pages about a lost worker; the watch says it in a line."""
    return not record.pathname.endswith("cluster_coordinator.py")


def _ignore_stopped_threads(failure: threading.ExceptHookArgs) -> None:
    """Says nothing of the coordinator's threads, which fail when they are stopped at work."""
    if failure.thread is None or not failure.thread.name.startswith(_THREADS):
        threading.__excepthook__(failure)


def _may_be_a_lost_task(error: BaseException) -> bool:
    original = getattr(error, "original_exception", error)
    lost = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    return isinstance(original, lost)


def _remote_dataset(dataset: tf.data.Dataset) -> Any:
    """Returns a concrete function that builds the dataset wherever it is called."""
    graph = coordinator_values.serialize_dataset_to_graph(dataset)
    spec = dataset.element_spec
    return tf.function(
        lambda: coordinator_values.deserialize_dataset_from_graph(graph, spec)
    ).get_concrete_function()


def _iterator_maker(function: Any) -> Callable[[], Any]:
    return lambda: iter(function())
