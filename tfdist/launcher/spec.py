"""What to start: the blueprint of a job, validated before any process exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.errors import LaunchError, explain
from tfdist.launcher.tasks import LaunchTask, with_servers, workers_only

# Set by the launcher for each worker; a value from the user would contradict the cluster.
OWN_VARIABLES = (
    "TF_CONFIG",
    "TFDIST_JOB",
    "TFDIST_LOCAL_RANK",
    "TFDIST_RANK",
    "TFDIST_WORLD_SIZE",
)


@dataclass(frozen=True)
class LaunchSpec:
    """A job of local workers.

    Attributes:
        command: the program and its arguments, as the operating system takes them (see
            `tfdist.launcher.resolve_command`).
        num_workers: how many workers run it.
        num_ps: parameter servers. With any, there is a chief besides, which runs the program while the
            workers and ps serve it; without, there are workers only.
        evaluator: whether an evaluator runs beside the chief.
        max_restarts: how often, over all, a worker or evaluator that died is started again.
        devices_per_worker: GPUs of each worker, or logical CPU devices on a machine without GPUs.
            None shares the GPUs out evenly and leaves the CPU alone.
        log_dir: a folder for one `rank-N.log` per worker (or `worker-N.log`, `chief.log`, ...); None
            keeps none.
        start_timeout: seconds that a worker waits for its peers; None leaves tfdist's default.
        prefix: whether each line of output starts with the rank of its worker.
        grace: seconds between asking a worker to end and killing it.
        env: variables for every worker, over those of the launcher's own environment.
    """

    command: tuple[str, ...]
    num_workers: int
    devices_per_worker: int | None = None
    log_dir: Path | None = None
    start_timeout: float | None = None
    prefix: bool = True
    grace: float = 5.0
    env: Mapping[str, str] = field(default_factory=dict)
    num_ps: int = 0
    evaluator: bool = False
    max_restarts: int = 0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            LaunchError: if a field has a value that can't be started.
        """
        if not self.command:
            raise LaunchError(
                explain(
                    "There is no program to run",
                    fix="Name a script: tfdist run -n 2 train.py",
                )
            )
        if self.num_workers < 1:
            raise LaunchError(
                explain(
                    "The number of workers must be at least 1",
                    received=self.num_workers,
                    source="-n",
                    fix="Use -n 1 or more",
                )
            )
        if self.devices_per_worker is not None and self.devices_per_worker < 1:
            raise LaunchError(
                explain(
                    "Each worker needs at least one device",
                    received=self.devices_per_worker,
                    source="--devices-per-worker",
                    fix="Use 1 or more, or leave the option out",
                )
            )
        # Written so that NaN fails too.
        if self.start_timeout is not None and not 0 < self.start_timeout < float("inf"):
            raise LaunchError(
                explain(
                    "The start timeout must be a positive number of seconds",
                    received=self.start_timeout,
                    source="--start-timeout",
                    fix="Use a positive number such as 300",
                )
            )
        if not 0 <= self.grace < float("inf"):
            raise LaunchError(
                explain(
                    "The grace period must be a number of seconds, 0 or more",
                    received=self.grace,
                    source="--grace",
                    fix="Use a number such as 5",
                )
            )
        self._check_servers()
        for name in self.env:
            if name in OWN_VARIABLES:
                raise LaunchError(
                    explain(
                        "The launcher itself sets this variable for each worker",
                        received=name,
                        source="--env",
                        fix="Leave it out; to set up a cluster by hand, start the script without "
                        "tfdist run",
                    )
                )

    def _check_servers(self) -> None:
        for option, value in (("--ps", self.num_ps), ("--max-restarts", self.max_restarts)):
            if value < 0:
                raise LaunchError(
                    explain(
                        "A number of processes or restarts must not be negative",
                        received=value,
                        source=option,
                        fix="Use 0 or more, or leave the option out",
                    )
                )
        if self.num_ps:
            return
        for option, is_given in (
            ("--evaluator", self.evaluator),
            ("--max-restarts", self.max_restarts > 0),
        ):
            if is_given:
                raise LaunchError(
                    explain(
                        f"{option} needs a job with parameter servers: without them, the workers of a "
                        "job end together",
                        source=option,
                        fix=f"Write --workers {self.num_workers} --ps 1, or leave {option} out",
                    )
                )

    @property
    def tasks(self) -> tuple[LaunchTask, ...]:
        """Every process to start, by rank."""
        if self.num_ps:
            return with_servers(self.num_workers, self.num_ps, self.evaluator)
        return workers_only(self.num_workers)


def parse_assignments(texts: list[str]) -> dict[str, str]:
    """Turns `["K=V", ...]` into a mapping; a later assignment to a name wins.

    Raises:
        LaunchError: if a text is not an assignment to a variable.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or "\0" in text:
            raise LaunchError(
                explain(
                    "An environment variable is given as NAME=VALUE",
                    received=repr(text),
                    source="--env",
                    fix=f"Write --env {name or 'NAME'}=VALUE",
                )
            )
        found[name] = value
    return found
