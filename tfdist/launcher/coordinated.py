"""Who ended when, and who has to be ended, in a job of a chief, workers, ps and perhaps an evaluator.

The chief's program is the job. The others serve it, and end by themselves when it ends.

                    a worker or evaluator dies: started again, or the job goes on without it
                    +--+
                    |  v
                   RUNNING
    the chief ends  |  |  |  a ps dies: the chief gets time to fail with its own error
    well            |  |  +-----------------------> SETTLING --+ the chief failed, or time is over
     +--------------+  | the chief fails, or a worker can't    |
     |                 | even start                            |
     v                 +-----------> ENDING (SIGTERM) <--------+
    FINISHING                          ^    |
     |  the servers don't end in time  |    | grace period over, or Ctrl-C again
     +---------------------------------+    v
                                          KILLED
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from tfdist.launcher.failure import Outcome
from tfdist.launcher.supervisor import Phase, Supervisor

__all__ = ["CoordinatedSupervisor"]

# A chief notices within about ten seconds that a ps has gone, and may have to end its own threads.
_CHIEF_SETTLES = 45.0
# The chief tells the servers that it has finished; those that it did not reach notice it themselves.
_SERVERS_END = 20.0
_CHIEF = 0


@dataclass
class CoordinatedSupervisor(Supervisor):
    """The state of a job with parameter servers, driven by events with their times.

    Attributes:
        restart: starts the process of a rank again; returns whether that was possible.
        restarts_left: how often that may still be done.
    """

    restart: Callable[[int], bool] = lambda _: False
    restarts_left: int = 0

    def __post_init__(self) -> None:
        self._restarted: set[int] = set()
        self._chief: Outcome | None = None
        self._fatal: Outcome | None = None  # what ended the job, besides the chief's own failure
        self._asked: set[int] = set()  # servers that did not end with the chief

    @property
    def root_cause(self) -> Outcome | None:
        """What ended the job; None for one that went well, or was ended by a signal."""
        if self._chief is not None and not self._chief.failed:
            return None
        if self._fatal is not None:
            return self._fatal
        if self._chief is not None and self._chief.at <= self.asked_at:
            return self._chief
        return None

    @property
    def exit_code(self) -> int:
        """The chief's, unless it was only asked to end because of another one's failure."""
        if self._chief is not None and (not self._chief.failed or self._chief.at <= self.asked_at):
            return self._chief.exit_code
        if self.root_cause is not None:
            return self.root_cause.exit_code
        return 128 + (self.interrupted_by or signal.SIGKILL)

    def ended(self, outcome: Outcome, now: float) -> None:
        """Takes note of a process's end."""
        self.running.discard(outcome.rank)
        self.outcomes.append(outcome)
        role = self.tasks[outcome.rank].role
        if role == "chief":
            self._chief_ended(outcome, now)
        elif self.phase is Phase.RUNNING and outcome.failed and self._chief is None:
            if self.blames_peer(outcome.rank):
                return  # It says that the chief is gone: so the chief's own end is on its way.
            if role == "ps":
                self._ps_ended(outcome, now)
            elif role == "worker" and self._never_served(outcome):
                self._fatal = outcome
                self._ask_to_end(outcome, now)
            else:
                self._lost(outcome)
        elif self.phase is Phase.FINISHING and outcome.failed and role == "evaluator":
            self.say(f"{self.name(outcome.rank)} {_how(outcome)}")

    def signalled(self, number: int, now: float) -> None:
        """Passes a signal on to the chief, which may have something to save; the others follow it."""
        if self.phase in (Phase.RUNNING, Phase.SETTLING) and _CHIEF in self.running:
            self.interrupted_by = number
            self._send_to({_CHIEF}, number, now)
            self.say(
                f"{signal.Signals(number).name} was passed on to the chief"
                + (" (Ctrl-C again kills)" if number == signal.SIGINT else "")
            )
        elif self.phase is Phase.FINISHING:
            self._send_to(self.running, signal.SIGTERM, now)
        else:
            super().signalled(number, now)

    def tick(self, now: float) -> None:
        """Does what is due; to be called when `deadline` has passed."""
        if now < self.deadline:
            return
        if self.phase is Phase.SETTLING and self._fatal is not None:
            self._ask_to_end(self._fatal, now)
        elif self.phase is Phase.FINISHING:
            self._finish(now)
        else:
            super().tick(now)

    def _chief_ended(self, outcome: Outcome, now: float) -> None:
        self._chief = outcome
        if not self.running:
            return
        if self.phase in (Phase.ENDING, Phase.KILLED):
            self._send_to(self.running, signal.SIGTERM, self.asked_at)
            self.deadline = now + self.grace
        elif outcome.failed:
            self._ask_to_end(outcome, now)
        else:
            self.phase, self.deadline = Phase.FINISHING, now + _SERVERS_END

    def _ps_ended(self, outcome: Outcome, now: float) -> None:
        self._fatal = outcome
        self.phase, self.deadline = Phase.SETTLING, now + _CHIEF_SETTLES
        self.say(
            f"{self.name(outcome.rank)} {_how(outcome)}, and the variables that it held are lost with "
            "it; the chief is given time to end"
        )

    def _never_served(self, outcome: Outcome) -> bool:
        """Whether a worker ended with an error of its own program, and that is not to be retried.

        A server has no errors of its own once it serves: it is killed, or crashes.
        """
        is_own_error = outcome.returncode > 0 and outcome.signal is None
        return is_own_error and self.restarts_left == 0 and outcome.rank not in self._restarted

    def _lost(self, outcome: Outcome) -> None:
        what = f"{self.name(outcome.rank)} {_how(outcome)}"
        if self.restarts_left > 0:
            self.restarts_left -= 1
            self.say(f"{what}; it is started again ({self.restarts_left} restarts left)")
            if self.restart(outcome.rank):
                self._restarted.add(outcome.rank)
                self.running.add(outcome.rank)
                return
        remains = any(self.tasks[rank].role == "worker" for rank in self.running)
        self.say(f"{what}; the job goes on without it{'' if remains else ': no worker is left'}")

    def _finish(self, now: float) -> None:
        """The chief has finished some time ago; the servers should have ended with it."""
        evaluators = {rank for rank in self.running if self.tasks[rank].role == "evaluator"}
        servers = self.running - evaluators
        if not servers:
            # It may still evaluate the last checkpoint.
            self.say(f"the chief has finished; waiting for {self.names(evaluators)}")
            self.deadline = float("inf")
            return
        if servers <= self.killed:
            self.say(f"{self.names(servers)} can't be killed; given up")
            self.abandoned |= servers
            self.running -= servers
            return
        if servers <= self._asked:
            self.killed |= servers
            number, how = signal.SIGKILL, "killed"
        else:
            self._asked |= servers
            number, how = signal.SIGTERM, "asked to"
        self.say(f"{self.names(servers)} did not end with the chief: {how}")
        for rank in sorted(servers):
            self.send(rank, number)
        self.deadline = now + max(self.grace, 1.0)

    def _send_to(self, ranks: set[int], number: int, now: float) -> None:
        self.phase, self.asked_at, self.deadline = Phase.ENDING, now, now + self.grace
        for rank in sorted(ranks):
            self.send(rank, number)


def _how(outcome: Outcome) -> str:
    if outcome.returncode < 0:
        return f"was {outcome.describe().replace(', ', ' (')})"
    return f"failed ({outcome.describe()})"
