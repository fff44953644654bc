"""The cluster and the settings that a job started here would have."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from tfdist import combinations, preflight
from tfdist.cluster import Cluster
from tfdist.cluster.check import split_address
from tfdist.config import Config
from tfdist.doctor.commands import each_within
from tfdist.doctor.facts import ClusterFacts, TaskFacts
from tfdist.doctor.machine import addresses_of
from tfdist.errors import TfdistError

__all__ = ["cluster"]


def cluster(environ: Mapping[str, str], timeout: float = 5.0) -> ClusterFacts:
    """Resolves the cluster as `tfdist.create` would, and looks at each of its tasks.

    Args:
        environ: the environment.
        timeout: seconds for all names, and for all connections.
    """
    try:
        found = Cluster.resolve(environ)
    except TfdistError as error:
        settings, settings_problem = _settings(environ, None)
        return ClusterFacts(
            problem=str(error), settings=settings, settings_problem=settings_problem
        )
    settings, settings_problem = _settings(environ, found)
    tasks = found.tasks()
    names = [split_address(task.address)[0] for task in tasks]
    resolved = each_within(timeout, addresses_of, names)
    addresses = [task.address for task, name in zip(tasks, names) if resolved.get(name)]
    listening = each_within(timeout, preflight.listens, addresses)
    return ClusterFacts(
        source=found.source,
        task=found.task_name,
        address=found.address or "",
        tasks=tuple(
            TaskFacts(
                task.name,
                task.address,
                resolved.get(name, ()),
                listening.get(task.address, False),
            )
            for task, name in zip(tasks, names)
        ),
        port_problem=_port_problem(found),
        settings=settings,
        settings_problem=settings_problem,
    )


def _port_problem(found: Cluster) -> str:
    try:
        preflight.check_own_port(found)
    except TfdistError as error:
        return str(error)
    return ""


def _settings(environ: Mapping[str, str], found: Cluster | None) -> tuple[dict[str, str], str]:
    """What TFDIST_ variables say, and what is wrong with that."""
    with _warnings() as warnings:
        try:
            config = Config.resolve(environ=environ)
            if found is not None:
                combinations.check(config, found)
        except TfdistError as error:
            return {}, str(error)
    settings = {name: str(item.value) for name, item in config.given().items()}
    return settings, "; ".join(warnings)


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collects what tfdist warns of, such as a variable that looks like a setting misspelt."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler, logger = Collector(logging.WARNING), logging.getLogger("tfdist")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
