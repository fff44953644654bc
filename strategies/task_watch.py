"""Watches the tasks of a parameter server cluster from the coordinator."""

from __future__ import annotations

import logging
import threading
import time

from tfdist import preflight
from tfdist.cluster import Cluster, Task
from tfdist.errors import explain

__all__ = ["TaskWatch"]

logger = logging.getLogger(__name__)

_PERIOD = 1.0  # seconds between two looks
_CONNECT = 2.0  # seconds for one connection
_PS_GONE = 5.0  # seconds without an answer after which a ps counts as gone
_WORKER_GONE = 2.0  # and a worker: it is only reported, since others do its steps


class TaskWatch:
    """Knocks at every task about once a second, and says which have gone or come back.

    Variables live on the parameter servers: when one is gone, the job is over. Workers may come and
    go; only when none is left for long, the job is over too.

    Attributes:
        failure: why the job can't go on, as one line; None while it can.
    """

    def __init__(self, cluster: Cluster, worker_timeout: float) -> None:
        """Starts to watch.

        Args:
            cluster: the cluster; its workers and parameter servers are watched.
            worker_timeout: how long no worker may be there, in seconds.
        """
        self.failure: str | None = None
        self._tasks = [task for task in cluster.tasks() if task.type in ("worker", "ps")]
        self._worker_timeout = worker_timeout
        self._seen = {task: time.monotonic() for task in self._tasks}
        self._gone: set[Task] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfdist-task-watch", daemon=True)
        self._thread.start()

    @property
    def gone(self) -> bool:
        """Whether a task does not answer now."""
        return bool(self._gone)

    def close(self) -> None:
        """Stops watching, and waits until nobody knocks any more."""
        self._end.set()
        self._thread.join(timeout=_CONNECT)

    def _run(self) -> None:
        while not self._end.wait(_PERIOD) and self.failure is None:
            for task in self._tasks:
                if self._end.is_set():
                    return
                self._look(task)
            self._judge()

    def _look(self, task: Task) -> None:
        now = time.monotonic()
        if preflight.listens(task.address, _CONNECT):
            self._seen[task] = now
            if task in self._gone:
                self._gone.discard(task)
                logger.warning("%s at %s is back.", task.name, task.address)
            return
        limit = _PS_GONE if task.type == "ps" else _WORKER_GONE
        if task in self._gone or now - self._seen[task] < limit:
            return
        self._gone.add(task)
        if task.type == "worker":
            logger.warning(
                "%s at %s is gone; the other workers do its steps until it is started again.",
                task.name,
                task.address,
            )

    def _judge(self) -> None:
        for task in self._gone:
            if task.type == "ps":
                self.failure = explain(
                    f"{task.name} at {task.address} is gone, and the variables that it held with it",
                    fix="Look at the end of its log; start the job again: it resumes from its last "
                    "backup (backup_dir)",
                )
                return
        workers = [task for task in self._tasks if task.type == "worker"]
        absent = time.monotonic() - max(self._seen[task] for task in workers)
        if absent > self._worker_timeout:
            self.failure = explain(
                f"No worker of {len(workers)} has answered for {absent:.0f} s",
                received=", ".join(f"{task.name} at {task.address}" for task in workers),
                source=f"worker_timeout={self._worker_timeout:g}",
                fix="Start a worker again at its address and `fit` goes on; or start the job again: "
                "it resumes from its last backup (backup_dir)",
            )
