"""What the launcher says at the end of a job that did not go well."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tfdist.launcher.failure import Outcome
from tfdist.launcher.supervisor import Supervisor

# When the first failure only blames a peer, the cause may be in any of the other logs.
_OTHER_LOGS = 3


def failure_report(
    supervisor: Supervisor, tail: Callable[[int], list[str]], started: float
) -> Iterator[str]:
    """Names the root cause, shows the end of its log, and says what became of the others.

    Args:
        supervisor: after the job's end.
        tail: the last lines of a rank's log.
        started: when the job started, on the monotonic clock.

    Yields:
        Lines.
    """
    cause = supervisor.root_cause
    if cause is None:
        return
    several = len(supervisor.outcomes) + len(supervisor.abandoned) > 1
    verb = "failed first" if several and cause.returncode > 0 else "failed"
    if cause.returncode < 0:
        what = f"was {cause.describe().replace(', ', ' (')})"
        verb = f"{what}{', first of all,' if several else ''}"
    else:
        verb = f"{verb} ({cause.describe()})"
    yield f"{supervisor.name(cause.rank)} {verb} after {cause.at - started:.1f} s"
    if cause.hint:
        yield f"  {cause.hint}"
    if several:
        yield from _log_end(supervisor.name(cause.rank), tail(cause.rank))
        others = [outcome for outcome in supervisor.outcomes if outcome is not cause]
        if supervisor.blames_peer(cause.rank):
            yield "that log only says that another worker had gone"
            for outcome in [o for o in others if o.failed][:_OTHER_LOGS]:
                yield from _log_end(supervisor.name(outcome.rank), tail(outcome.rank))
        for outcome in sorted(others, key=lambda other: other.at):
            yield f"{supervisor.name(outcome.rank)}: {_fate(outcome, cause, supervisor)}"


def _log_end(name: str, lines: list[str]) -> Iterator[str]:
    if not lines:
        yield f"{name} wrote nothing"
        return
    yield f"the last lines of {name}'s log:"
    for line in lines:
        yield f"  | {line}"


def _fate(outcome: Outcome, cause: Outcome, supervisor: Supervisor) -> str:
    if outcome.rank in supervisor.killed:
        return "ended as a consequence (killed: it did not react to SIGTERM)"
    if outcome.at > supervisor.asked_at:
        return f"ended as a consequence ({outcome.describe()})"
    if not outcome.failed:
        return "had finished"
    apart = outcome.at - cause.at
    when = f"{abs(apart):.1f} s {'later' if apart > 0 else 'before'}"
    return f"failed too ({outcome.describe()}), {when}"
