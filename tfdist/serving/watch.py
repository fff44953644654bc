"""Is the chief still there? A clock and a state; `tfdist.serving.server` asks the network.

UNSEEN --- it claims this server ---> CLAIMED --- TensorFlow answers at its address ---> UP
  |                                     |                                                 |
  | start_timeout is over               | 30 s without another claim     3 s refused, or  |
  |                                     |                                30 s unreachable |
  v                                     v                                                 v
"did not come"                        "came and ended"                             "is gone"
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ChiefWatch"]

# The chief repeats its claim every two seconds until it has all tasks, and connects at once then.
_CLAIM_LASTS = 30.0
# A host that refuses is there, and the process is not: that soon is certain. Without any answer it
# may be the network.
_REFUSED = 3.0
_UNREACHABLE = 30.0


@dataclass
class ChiefWatch:
    """What a server knows of its chief.

    Attributes:
        started: when the server started, in seconds of the clock that all times are of.
        start_timeout: how long the chief may take to come, in seconds.
        claimed_at: when the chief has claimed this server last.
        seen_at: when TensorFlow answered at the chief's address last; what counts is for how long it
            has been looked for in vain since, so that a host that slept does not give up.
    """

    started: float
    start_timeout: float
    claimed_at: float | None = None
    seen_at: float | None = None
    _missed_since: float | None = None
    _refused_since: float | None = None

    @property
    def is_up(self) -> bool:
        """Whether the chief has been connected."""
        return self.seen_at is not None

    def saw(self, now: float) -> None:
        """TensorFlow answers at the chief's address."""
        self.seen_at = now
        self._missed_since = self._refused_since = None

    def missed(self, now: float, is_refused: bool) -> None:
        """Nothing answers there; `is_refused`: its host does, without such a process."""
        if self._missed_since is None:
            self._missed_since = now
        if not is_refused:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now

    def verdict(self, now: float) -> str | None:
        """Why the chief is given up, as words that follow "the chief"; None while it is not."""
        if self.seen_at is not None:
            if self._refused_since is not None and now - self._refused_since >= _REFUSED:
                return "is gone without a word: it was killed, or crashed"
            if self._missed_since is not None and now - self._missed_since >= _UNREACHABLE:
                return f"has not been reachable for {now - self._missed_since:.0f} s"
        elif self.claimed_at is not None:
            if now - self.claimed_at >= _CLAIM_LASTS:
                return "came and ended before it was connected"
        elif now - self.started >= self.start_timeout:
            return f"did not come within {self.start_timeout:g} s (start_timeout)"
        return None
