"""Who ended when, and who has to be ended: decisions only, without processes or a clock.

    all ended well
RUNNING ------------------------------------------------------------> (nobody left)
   | a worker failed, and its log blames a peer                             ^
   +----------------> SETTLING: the peer's own end is on its way            |
   | a worker failed      | it failed too, or the grace period is over      |
   +----------------------+--> ENDING (SIGTERM sent) --+                    |
   | Ctrl-C, SIGTERM, SIGHUP                           | grace period over, |
   +---------------------> ENDING (signal passed on) --+ or Ctrl-C again    |
                                                       v                    |
                                                    KILLED -----------------+
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tfdist.launcher.failure import Outcome, root_cause
from tfdist.launcher.tasks import LaunchTask

# How long a worker may run on after another has finished before the launcher mentions it.
PATIENCE = 60.0
# One Ctrl-C may arrive twice, from the terminal and from a wrapper around the launcher.
_SAME_KEYSTROKE = 0.3
# SIGKILL fails only for a process that hangs inside the kernel; then there is nothing left to do.
_KILL_TIMEOUT = 10.0


class Phase(enum.Enum):
    """Where the job is: see the module's drawing."""

    RUNNING = enum.auto()
    SETTLING = enum.auto()
    ENDING = enum.auto()
    FINISHING = enum.auto()  # see tfdist.launcher.coordinated
    KILLED = enum.auto()


@dataclass
class Supervisor:
    """The state of a job, driven by events with their times.

    Attributes:
        running: the ranks that have not ended.
        grace: seconds between asking to end and killing.
        send: sends a signal to a rank.
        say: tells the user a line.
        blames_peer: whether a rank's log blames another one.
        tasks: every process by rank, for its name; without them all are workers.
    """

    running: set[int]
    grace: float
    send: Callable[[int, int], None]
    say: Callable[[str], None]
    blames_peer: Callable[[int], bool]
    tasks: Sequence[LaunchTask] = ()
    phase: Phase = Phase.RUNNING
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted_by: int | None = None
    killed: set[int] = field(default_factory=set)
    abandoned: set[int] = field(default_factory=set)
    asked_at: float = float("inf")
    deadline: float = float("inf")

    @property
    def own_outcomes(self) -> list[Outcome]:
        """How those workers ended that the launcher had not asked to."""
        return [outcome for outcome in self.outcomes if outcome.at <= self.asked_at]

    @property
    def root_cause(self) -> Outcome | None:
        return root_cause(self.own_outcomes, self.blames_peer)

    @property
    def exit_code(self) -> int:
        """The job's, once nobody is running any more: see `tfdist.launcher.job.launch`."""
        cause = self.root_cause
        if cause is not None:
            return cause.exit_code
        # Workers that end well after a signal (they saved what they had) have handled it.
        clean = not self.abandoned and not any(outcome.failed for outcome in self.outcomes)
        return 0 if self.interrupted_by is None or clean else 128 + self.interrupted_by

    def name(self, rank: int) -> str:
        """What messages call a process, such as "worker 1"."""
        return self.tasks[rank].name if self.tasks else f"worker {rank}"

    def names(self, ranks: set[int]) -> str:
        """Several of them: "workers 0, 2", or "worker 0, ps 1" where there are other roles."""
        if any(task.role != "worker" for task in self.tasks):
            return ", ".join(self.name(rank) for rank in sorted(ranks))
        numbers = ", ".join(map(str, sorted(ranks)))
        return f"worker {numbers}" if len(ranks) == 1 else f"workers {numbers}"

    def ended(self, outcome: Outcome, now: float) -> None:
        """Takes note of a worker's end."""
        self.running.discard(outcome.rank)
        self.outcomes.append(outcome)
        if not self.running:
            return
        if self.phase is Phase.RUNNING:
            if not outcome.failed:
                self.deadline = now + PATIENCE
            elif self.blames_peer(outcome.rank):
                self.phase, self.deadline = Phase.SETTLING, now + self.grace
            else:
                self._ask_to_end(outcome, now)
        elif self.phase is Phase.SETTLING and outcome.failed and not self.blames_peer(outcome.rank):
            self._ask_to_end(outcome, now)

    def signalled(self, number: int, now: float) -> None:
        """Passes a signal to the launcher on to every worker; a second Ctrl-C kills them."""
        if self.phase in (Phase.RUNNING, Phase.SETTLING):
            self.interrupted_by = number
            self._send(number, now)
            self.say(
                f"{signal.Signals(number).name} was passed on to {self.names(self.running)}"
                + (" (Ctrl-C again kills)" if number == signal.SIGINT else "")
            )
        elif number == signal.SIGINT and now - self.asked_at > _SAME_KEYSTROKE:
            self._kill(now)

    def output_closed(self, now: float) -> None:
        """Ends the job because nobody reads its output any more."""
        if self.phase in (Phase.RUNNING, Phase.SETTLING):
            self.interrupted_by = signal.SIGPIPE
            self._send(signal.SIGTERM, now)

    def tick(self, now: float) -> None:
        """Does what is due; to be called when `deadline` has passed."""
        if now < self.deadline:
            return
        if self.phase is Phase.RUNNING:
            finished = {outcome.rank for outcome in self.outcomes}
            self.say(
                f"{self.names(finished)} {'has' if len(finished) == 1 else 'have'} finished; "
                f"waiting for {self.names(self.running)}"
            )
            self.deadline = float("inf")
        elif self.phase is Phase.SETTLING:
            self._ask_to_end(self.outcomes[-1], now)
        elif self.phase is Phase.ENDING:
            self.say(f"{self.names(self.running)} did not end within {self.grace:g} s: killed")
            self._kill(now)
        else:
            self.say(f"{self.names(self.running)} can't be killed; given up")
            self.abandoned |= self.running
            self.running.clear()

    def _ask_to_end(self, cause: Outcome, now: float) -> None:
        self._send(signal.SIGTERM, now)
        self.say(
            f"{self.name(cause.rank)} failed ({cause.describe()}); "
            f"ending {self.names(self.running)}"
        )

    def _send(self, number: int, now: float) -> None:
        self.phase, self.asked_at, self.deadline = Phase.ENDING, now, now + self.grace
        for rank in sorted(self.running):
            self.send(rank, number)

    def _kill(self, now: float) -> None:
        self.phase, self.deadline = Phase.KILLED, now + _KILL_TIMEOUT
        self.killed |= self.running
        for rank in sorted(self.running):
            self.send(rank, signal.SIGKILL)
