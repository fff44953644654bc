"""Runs a job: starts the workers, follows the supervisor's decisions, cleans up, reports."""

from __future__ import annotations

import functools
import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from tfdist.errors import LaunchError
from tfdist.launcher import environment, machine
from tfdist.launcher.capture import LogFile
from tfdist.launcher.console import Console
from tfdist.launcher.coordinated import CoordinatedSupervisor
from tfdist.launcher.failure import Outcome, blames_peer
from tfdist.launcher.group import WorkerGroup
from tfdist.launcher.guard import Guard, guarded
from tfdist.launcher.ports import held_ports
from tfdist.launcher.report import failure_report
from tfdist.launcher.spec import LaunchSpec
from tfdist.launcher.supervisor import Supervisor

# Called with the rank, return code and time of a process that has ended.
_Ended = Callable[[int, int, float], None]
# What happened, as the supervisor's method to call with the time at which it is called.
_Events = queue.SimpleQueue[Callable[[Supervisor, float], None]]


def launch(spec: LaunchSpec) -> int:
    """Runs the job and waits for its end.

    Signals to this process go to the workers meanwhile. When the call returns, no process of the
    job is left.

    Args:
        spec: what to start.

    Returns:
        0 if every worker ended with 0. Otherwise the exit code of the worker that failed first,
        128 + n if signal n killed it, or 128 + n if signal n interrupted the launcher. With
        parameter servers it is the chief's, whatever became of the others.

    Raises:
        LaunchError: if the workers can't be started; then none is left running.
    """
    token = uuid.uuid4().hex
    events: _Events = queue.SimpleQueue()
    console = Console(
        [task.label if spec.prefix else None for task in spec.tasks],
        on_closed=lambda: events.put(lambda supervisor, now: supervisor.output_closed(now)),
    )
    here = machine.detect(os.environ)
    with ExitStack() as stack:
        # The guard first: it is a fork, and should copy neither ports nor threads.
        guard = stack.enter_context(guarded(token))
        ports = stack.enter_context(held_ports(len(spec.tasks)))
        environments = environment.build(spec, ports, token, here, os.environ)
        logs = _open_logs(spec, stack)
        stack.enter_context(_signals_become(events))
        console.say(_announcement(spec, ports))
        for notice in environments.notices:
            console.say(notice)

        started = time.monotonic()
        group = WorkerGroup(token, console, logs, spec.tasks)
        try:
            group.start(spec.command, environments.by_rank, guard)
        except BaseException:
            group.close(gently=False)
            raise
        start_again = functools.partial(_restart, group, spec, environments, guard, console)
        supervisor = _supervise(group, spec, console, events, start_again)
        with _interruptible():
            gently = not any(outcome.failed for outcome in supervisor.outcomes)
            leftover = group.close(gently)
        if leftover and gently:
            console.say(f"the job left processes behind, which were ended: {', '.join(leftover)}")
        for line in failure_report(supervisor, group.tail, started):
            console.say(line)
        for log in logs:
            if log is not None and log.failure is not None:
                console.say(f"{log.path} is incomplete: {log.failure.strerror}")
    return exit_code(supervisor)


def exit_code(supervisor: Supervisor) -> int:
    """The job's exit code, once nobody is running any more: see `launch`."""
    return supervisor.exit_code


def _supervise(
    group: WorkerGroup,
    spec: LaunchSpec,
    console: Console,
    events: _Events,
    restart: Callable[[int, _Ended], bool],
) -> Supervisor:
    """Feeds what happens to a supervisor until no process is running."""

    def ended(rank: int, returncode: int, at: float) -> None:
        outcome = Outcome(rank, returncode, at)
        events.put(lambda supervisor, now: supervisor.ended(outcome, now))

    settings: dict[str, Any] = {
        "running": {task.rank for task in spec.tasks},
        "grace": spec.grace,
        "send": group.send,
        "say": console.say,
        "blames_peer": lambda rank: blames_peer(group.tail(rank)),
        "tasks": spec.tasks,
    }
    supervisor = (
        CoordinatedSupervisor(
            **settings,
            restart=lambda rank: restart(rank, ended),
            restarts_left=spec.max_restarts,
        )
        if spec.num_ps
        else Supervisor(**settings)
    )
    group.watch(ended)
    while supervisor.running:
        wait = supervisor.deadline - time.monotonic()
        try:
            event = events.get(timeout=max(0.0, wait) if wait < float("inf") else None)
        except queue.Empty:
            supervisor.tick(time.monotonic())
        else:
            event(supervisor, time.monotonic())
    return supervisor


def _restart(
    group: WorkerGroup,
    spec: LaunchSpec,
    environments: environment.Environments,
    guard: Guard,
    console: Console,
    rank: int,
    ended: _Ended,
) -> bool:
    """Starts a process again; returns whether that was possible."""
    try:
        group.restart(rank, spec.command, environments.by_rank[rank], guard, ended)
    except LaunchError as error:
        console.say(str(error))
        return False
    return True


def _open_logs(spec: LaunchSpec, stack: ExitStack) -> list[LogFile | None]:
    if spec.log_dir is None:
        return [None] * len(spec.tasks)
    folder = spec.log_dir
    return [stack.enter_context(closing(LogFile(folder / task.log))) for task in spec.tasks]


def _announcement(spec: LaunchSpec, ports: tuple[int, ...]) -> str:
    workers = "1 worker" if spec.num_workers == 1 else f"{spec.num_workers} workers"
    if spec.num_ps:
        workers = f"a chief, {workers}, {spec.num_ps} ps"
        workers += " and an evaluator" if spec.evaluator else ""
    where = ", ".join(map(str, ports[:8])) + (", ..." if len(ports) > 8 else "")
    return f"starting {workers} on 127.0.0.1 (port{'s' if len(ports) > 1 else ''} {where})"


@contextmanager
def _signals_become(events: _Events) -> Iterator[None]:
    """Turns signals to this process into events.

    A signal that is ignored (SIGHUP under nohup, SIGINT of a background job) stays ignored. Outside
    the main thread Python can't receive signals, so nothing changes there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: object) -> None:
        events.put(lambda supervisor, now: supervisor.signalled(number, now))

    previous = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lets Ctrl-C break off the wait for output that nobody reads (a pager that stands still)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
