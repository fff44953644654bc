"""All workers of a job with what they write, from the first start to the last byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tfdist.launcher import leftovers
from tfdist.launcher.capture import Capture, LogFile
from tfdist.launcher.guard import Guard
from tfdist.launcher.tasks import LaunchTask
from tfdist.launcher.workers import Worker

if TYPE_CHECKING:
    from tfdist.launcher.console import Console

# How long a worker's last output may take to arrive after its end. Longer only if something that
# it started keeps the pipe open; the rest is then read when that has been ended too.
_DRAIN = 0.5
# For the leftovers of a job that went well.
_LEFTOVER_GRACE = 2.0


class WorkerGroup:
    """The running side of a `LaunchSpec`.

    Args:
        token: the job's, in the environment of each of its processes.
        console: where their output goes.
        logs: a log file per rank, or None.
        tasks: every process, by rank.
    """

    def __init__(
        self,
        token: str,
        console: Console,
        logs: Sequence[LogFile | None],
        tasks: Sequence[LaunchTask],
    ) -> None:
        self._token = token
        self._tasks = tasks
        self._console = console
        self._logs = logs
        self._workers: list[Worker] = []
        self._captures: list[tuple[Capture, Capture]] = []
        self._earlier: list[tuple[Worker, tuple[Capture, Capture]]] = []  # started again since
        self._stop_reading, self._stop_writing = os.pipe()

    def start(
        self, command: Sequence[str], environments: Sequence[Mapping[str, str]], guard: Guard
    ) -> None:
        """Starts one worker per environment, all of them before the first thread.

        Raises:
            LaunchError: if one can't be started; `close` ends those that were.
        """
        for task, environment in zip(self._tasks, environments):
            worker = Worker(task.rank, task.name, command, environment)
            self._workers.append(worker)
            guard.watch(worker.pid)
        for worker in self._workers:
            self._captures.append(self._capture(worker))

    def restart(
        self,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        guard: Guard,
        ended: Callable[[int, int, float], None],
    ) -> None:
        """Starts the process of a rank that has ended again, and watches it.

        Raises:
            LaunchError: if it can't be started; the rank then stays as it is.
        """
        worker = Worker(rank, self._tasks[rank].name, command, environment)
        guard.watch(worker.pid)
        self._workers[rank].kill()  # what the first one left in its group
        self._earlier.append((self._workers[rank], self._captures[rank]))
        self._workers[rank] = worker
        self._captures[rank] = self._capture(worker)
        worker.watch(ended)

    def _capture(self, worker: Worker) -> tuple[Capture, Capture]:
        out, err = worker.take_pipes()
        stop, log = self._stop_reading, self._logs[worker.rank]
        captures = (
            Capture(worker.rank, "stdout", out, stop, self._console, log),
            Capture(worker.rank, "stderr", err, stop, self._console, log),
        )
        for capture in captures:
            capture.start()
        return captures

    def watch(self, ended: Callable[[int, int, float], None]) -> None:
        """Calls `ended(rank, returncode, when)`, from a thread, for each worker that ends."""
        for worker in self._workers:
            worker.watch(ended)

    def send(self, rank: int, number: int) -> None:
        """Sends a signal to a worker and to all that it started in its process group."""
        self._workers[rank].signal(number)

    def tail(self, rank: int) -> list[str]:
        """The last lines a worker wrote to stderr; to stdout if there are none."""
        for capture in self._captures[rank]:
            capture.join(_DRAIN)
        out, err = self._captures[rank]
        return err.tail or out.tail

    def close(self, gently: bool) -> list[str]:
        """Ends whatever is left of the job, and waits until all output has been passed on.

        Args:
            gently: whether leftovers get the chance to end by themselves.

        Returns:
            The processes besides the workers that had to be ended.
        """
        ended = leftovers.end(self._token, _LEFTOVER_GRACE if gently else 0)
        workers = [*self._workers, *(worker for worker, _ in self._earlier)]
        captures = [*self._captures, *(pair for _, pair in self._earlier)]
        for worker in workers:
            worker.kill()  # whatever in its group hid its environment
        # No reader waits any longer for a pipe that an escaped process may hold.
        os.close(self._stop_writing)
        for capture in (capture for pair in captures for capture in pair):
            capture.join()
        os.close(self._stop_reading)
        for worker in workers:
            worker.reap()
        return ended
