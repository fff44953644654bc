"""Every path of the drawing in tfdist.launcher.supervisor, with invented events and times."""

import signal

import pytest

from tfdist.launcher.failure import Outcome
from tfdist.launcher.job import exit_code
from tfdist.launcher.report import failure_report
from tfdist.launcher.supervisor import PATIENCE, Phase, Supervisor


class Scene:
    def __init__(self, workers=2, grace=5.0, blaming=(), tails=None):
        self.sent: list[tuple[int, int]] = []
        self.said: list[str] = []
        self.tails = tails or {}
        self.supervisor = Supervisor(
            running=set(range(workers)),
            grace=grace,
            send=lambda rank, number: self.sent.append((rank, number)),
            say=self.said.append,
            blames_peer=lambda rank: rank in blaming,
        )

    def end(self, rank, returncode, at):
        self.supervisor.ended(Outcome(rank, returncode, at), at + 0.001)

    def report(self):
        return list(failure_report(self.supervisor, lambda rank: self.tails.get(rank, []), 0.0))


def test_all_ends_well():
    scene = Scene()
    scene.end(1, 0, 1.0)
    scene.end(0, 0, 2.0)
    assert not scene.supervisor.running
    assert scene.sent == scene.said == scene.report() == []
    assert exit_code(scene.supervisor) == 0


def test_the_first_failure_ends_the_others_and_gives_its_code():
    scene = Scene(3, tails={1: ["ValueError: bug"]})
    scene.end(1, 3, 1.0)
    assert scene.sent == [(0, signal.SIGTERM), (2, signal.SIGTERM)]
    scene.end(0, 1, 2.0)
    scene.end(2, -15, 3.0)
    assert exit_code(scene.supervisor) == 3
    report = scene.report()
    assert report[0] == "worker 1 failed first (exit code 3) after 1.0 s"
    assert "  | ValueError: bug" in report
    assert "worker 0: ended as a consequence (exit code 1)" in report
    assert "worker 2: ended as a consequence (killed by SIGTERM, exit code 143)" in report


def test_the_order_is_that_of_the_ends_not_of_their_notice():
    scene = Scene(3)
    scene.supervisor.ended(Outcome(2, 7, 1.002), 1.01)
    scene.supervisor.ended(Outcome(0, 5, 1.001), 1.02)
    scene.end(1, -15, 2.0)
    assert exit_code(scene.supervisor) == 5


def test_who_ignores_sigterm_is_killed_after_the_grace_period():
    scene = Scene(grace=2.0)
    scene.end(1, 3, 1.0)
    scene.supervisor.tick(2.9)
    assert (0, signal.SIGKILL) not in scene.sent
    scene.supervisor.tick(3.1)
    assert scene.sent[-1] == (0, signal.SIGKILL)
    scene.end(0, -9, 3.2)
    assert exit_code(scene.supervisor) == 3
    report = scene.report()
    assert "worker 0: ended as a consequence (killed: it did not react to SIGTERM)" in report
    assert "worker 1 wrote nothing" in report


def test_who_cannot_be_killed_is_given_up():
    scene = Scene(grace=1.0)
    scene.end(1, 3, 1.0)
    scene.supervisor.tick(2.1)
    scene.supervisor.tick(100.0)
    assert not scene.supervisor.running
    assert "can't be killed" in scene.said[-1]
    assert exit_code(scene.supervisor) == 3


def test_a_worker_that_finished_is_mentioned_once():
    scene = Scene(3)
    scene.end(1, 0, 1.0)
    scene.supervisor.tick(PATIENCE)
    assert scene.said == []
    scene.supervisor.tick(1.1 + PATIENCE)
    assert scene.said == ["worker 1 has finished; waiting for workers 0, 2"]
    assert scene.supervisor.deadline == float("inf")
    scene.end(0, 0, 200.0)
    scene.supervisor.tick(201.0 + PATIENCE)
    assert scene.said[1:] == ["workers 0, 1 have finished; waiting for worker 2"]
    assert scene.sent == []


def test_a_worker_that_only_blames_a_peer_is_not_the_cause():
    scene = Scene(blaming={0})
    scene.end(0, 1, 1.0)
    assert scene.supervisor.phase is Phase.SETTLING
    assert scene.sent == []
    scene.end(1, 4, 2.5)
    assert exit_code(scene.supervisor) == 4
    report = scene.report()
    assert report[0].startswith("worker 1 failed first (exit code 4)")
    assert "worker 0: failed too (exit code 1), 1.5 s before" in report


def test_in_a_larger_job_the_real_cause_ends_the_rest():
    scene = Scene(3, blaming={0})
    scene.end(0, 1, 1.0)
    scene.end(1, 4, 2.5)
    assert scene.sent == [(2, signal.SIGTERM)]


def test_if_the_blamed_peer_hangs_the_job_still_ends_and_shows_its_log():
    scene = Scene(blaming={0}, grace=2.0, tails={0: ["UnavailableError"], 1: ["ValueError: bug"]})
    scene.end(0, 1, 1.0)
    scene.supervisor.tick(3.1)
    assert scene.sent == [(1, signal.SIGTERM)]
    scene.supervisor.tick(5.2)
    scene.end(1, -9, 5.3)
    assert exit_code(scene.supervisor) == 1
    report = scene.report()
    assert "that log only says that another worker had gone" in report
    assert "  | ValueError: bug" in report


def test_if_all_blame_each_other_the_first_is_the_cause():
    scene = Scene(blaming={0, 1})
    scene.end(1, 6, 1.0)
    scene.end(0, 5, 2.0)
    assert exit_code(scene.supervisor) == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(number):
    scene = Scene()
    scene.supervisor.signalled(number, 1.0)
    assert scene.sent == [(0, number), (1, number)]
    scene.end(0, -number, 1.1)
    scene.end(1, 1, 1.2)
    assert exit_code(scene.supervisor) == 128 + number
    assert scene.report() == []


def test_workers_that_handle_the_signal_and_end_well_end_the_job_well():
    scene = Scene()
    scene.supervisor.signalled(signal.SIGTERM, 1.0)
    scene.end(0, 0, 2.0)
    scene.end(1, 0, 2.0)
    assert exit_code(scene.supervisor) == 0


def test_after_a_signal_the_grace_period_counts_too():
    scene = Scene(grace=2.0)
    scene.supervisor.signalled(signal.SIGTERM, 1.0)
    scene.supervisor.tick(3.1)
    assert scene.sent[2:] == [(0, signal.SIGKILL), (1, signal.SIGKILL)]


def test_a_second_ctrl_c_kills_at_once():
    scene = Scene(grace=100.0)
    scene.supervisor.signalled(signal.SIGINT, 1.0)
    scene.supervisor.signalled(signal.SIGINT, 2.0)
    assert scene.sent[2:] == [(0, signal.SIGKILL), (1, signal.SIGKILL)]


def test_the_same_ctrl_c_twice_and_a_second_sigterm_do_not_kill():
    scene = Scene(grace=100.0)
    scene.supervisor.signalled(signal.SIGINT, 1.0)
    scene.supervisor.signalled(signal.SIGINT, 1.01)
    scene.supervisor.signalled(signal.SIGTERM, 2.0)
    assert len(scene.sent) == 2


def test_output_that_nobody_reads_ends_the_job():
    scene = Scene()
    scene.supervisor.output_closed(1.0)
    scene.supervisor.output_closed(1.1)
    assert scene.sent == [(0, signal.SIGTERM), (1, signal.SIGTERM)]
    scene.end(0, -15, 1.2)
    scene.end(1, -15, 1.2)
    assert exit_code(scene.supervisor) == 128 + signal.SIGPIPE


def test_one_worker_alone_is_not_shown_its_log_again():
    scene = Scene(1, tails={0: ["ValueError: bug"]})
    scene.end(0, 1, 1.5)
    assert scene.report() == ["worker 0 failed (exit code 1) after 1.5 s"]


def test_a_signal_death_is_named_with_its_usual_cause():
    scene = Scene(1)
    scene.end(0, -signal.SIGBUS, 1.5)
    report = "\n".join(scene.report())
    assert "worker 0 was killed by SIGBUS (exit code 135)" in report
    assert "/dev/shm" in report
