"""What an exit code means, and which of several failures came first."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_HINTS = {
    signal.SIGBUS: "a small /dev/shm is the usual cause in a container: see df -h /dev/shm, and "
    "docker run --shm-size=1g",
    signal.SIGKILL: "if nobody did that by hand, the kernel ran out of memory: see dmesg",
    signal.SIGILL: "this processor lacks an instruction that the program was built for",
}

# How a worker words that another one has gone. TensorFlow notices by a closed connection or by
# missing heartbeats, up to half a minute later; tfdist tells the others at once.
_PEER_FAILURE = re.compile(
    r"Collective ops is aborted|stopped sending heartbeats|Connection reset by peer|Socket closed"
    r"|failed to connect to all addresses|worker \d+ failed: |ended without a word"
    r"|the chief .*: (?:worker|ps) \d+ ends",
)
_PEER_ERRORS = frozenset({"AbortedError", "CancelledError", "UnavailableError"})
# The last line but the message of a Python traceback: "package.SomeError: message".
_EXCEPTION = re.compile(r"(?:\w+\.)*(\w*(?:Error|Exception|Exit|Interrupt|Warning))(?::|$)")


@dataclass(frozen=True)
class Outcome:
    """How a worker ended.

    Attributes:
        rank: which one.
        returncode: its exit code, or minus the signal that killed it.
        at: when, on the monotonic clock.
    """

    rank: int
    returncode: int
    at: float

    @property
    def failed(self) -> bool:
        return self.returncode != 0

    @property
    def exit_code(self) -> int:
        """The code as a shell reports it: 128 + n for signal n."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that killed the worker, or a shell around it."""
        number = -self.returncode if self.returncode < 0 else self.returncode - 128
        try:
            return signal.Signals(number)
        except ValueError:
            return None

    def describe(self) -> str:
        """Such as "exit code 1" or "killed by SIGBUS, exit code 135"."""
        code = f"exit code {self.exit_code}"
        if self.returncode < 0:
            return f"killed by {self.signal.name if self.signal else 'a signal'}, {code}"
        if self.signal is not None:
            return f"{code}, as a shell reports {self.signal.name}"
        return code

    @property
    def hint(self) -> str | None:
        return _HINTS.get(self.signal) if self.signal is not None else None


def blames_peer(lines: Sequence[str]) -> bool:
    """Whether the end of a worker's log says that another worker has gone.

    The last exception counts, with its message: TensorFlow's own lines around it mention the peers'
    trouble in the log of the culprit too.
    """
    for start in reversed(range(len(lines))):
        exception = _EXCEPTION.match(lines[start])
        if exception is None:
            continue
        if exception[1] in _PEER_ERRORS or _PEER_FAILURE.search(lines[start]):
            return True
        # TensorFlow's errors go on for many lines, other messages seldom do.
        return "tensorflow" in exception[0] and _mentions_peer(lines[start:])
    return _mentions_peer(lines)


def _mentions_peer(lines: Sequence[str]) -> bool:
    return any(_PEER_FAILURE.search(line) for line in lines)


def root_cause(outcomes: Sequence[Outcome], blames_other: Callable[[int], bool]) -> Outcome | None:
    """The failure that caused the others.

    That is the first in time. But a worker with an error of its own may take seconds to shut
    TensorFlow down, while another already ends because its connection broke: a worker whose log
    only blames a peer comes after those with errors of their own.

    Args:
        outcomes: of the workers that ended by themselves.
        blames_other: tells for a rank whether its log blames a peer.

    Returns:
        The outcome, or None if nobody failed.
    """
    failures = sorted((o for o in outcomes if o.failed), key=lambda outcome: outcome.at)
    own = [outcome for outcome in failures if not blames_other(outcome.rank)]
    return next(iter(own or failures), None)
