import signal

import pytest

from tfdist.launcher.failure import Outcome, blames_peer


@pytest.mark.parametrize(
    ("returncode", "exit_code", "text"),
    [
        (0, 0, "exit code 0"),
        (3, 3, "exit code 3"),
        (-signal.SIGKILL, 137, "killed by SIGKILL, exit code 137"),
        (-signal.SIGBUS, 135, "killed by SIGBUS, exit code 135"),
        (135, 135, "exit code 135, as a shell reports SIGBUS"),
        (128, 128, "exit code 128"),
        (255, 255, "exit code 255"),
        (-40, 168, "killed by a signal, exit code 168"),
    ],
)
def test_describe(returncode, exit_code, text):
    outcome = Outcome(0, returncode, 0.0)
    assert outcome.exit_code == exit_code
    assert outcome.describe() == text


@pytest.mark.parametrize(
    ("number", "word"),
    [(signal.SIGBUS, "/dev/shm"), (signal.SIGKILL, "memory"), (signal.SIGILL, "processor")],
)
def test_hints(number, word):
    assert word in (Outcome(0, -number, 0.0).hint or "")


def test_no_hint_for_an_ordinary_failure():
    assert Outcome(0, 1, 0.0).hint is None


UNAVAILABLE = [
    "E0000 00:00:1 base_collective_executor.cc:252] StartAbort UNAVAILABLE: Error reported from",
    "Traceback (most recent call last):",
    "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:",
    "",
    "Detected at node CollectiveReduceV2 defined at (most recent call last):",
    "Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks are",
]
INTERNAL = [
    "tensorflow.python.framework.errors_impl.InternalError: Graph execution error:",
    "Collective ops is aborted by: Socket closed",
]
FATAL = ["F0000 agent.cc:1] Terminating: tasks are unhealthy (stopped sending heartbeats):"]
TFDIST = ["Traceback:", "tfdist.errors.ClusterError: worker 1 failed: ValueError: user bug"]
LOST = ["tfdist.errors.ClusterError: worker 1 ended without a word (it was killed, or ...)."]
OWN = ["Traceback (most recent call last):", "ValueError: user bug on worker 1"]
OWN_AFTER = [*UNAVAILABLE, "During handling of the above exception, another occurred:", *OWN]
OWN_BEFORE_NOISE = [*OWN, "W0000 local_rendezvous.cc:412] Collective ops is aborted by: ..."]
OWN_INTERNAL = ["tensorflow.python.framework.errors_impl.InternalError: no memory", "node Conv2D"]


@pytest.mark.parametrize("log", [UNAVAILABLE, INTERNAL, FATAL, TFDIST, LOST])
def test_a_log_that_blames_a_peer(log):
    assert blames_peer(log)


@pytest.mark.parametrize("log", [[], OWN, OWN_AFTER, OWN_BEFORE_NOISE, OWN_INTERNAL])
def test_a_log_with_an_error_of_its_own(log):
    assert not blames_peer(log)
