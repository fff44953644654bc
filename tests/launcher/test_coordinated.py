"""Every path of the drawing in tfdist.launcher.coordinated, with invented events and times."""

import signal

import pytest

from tfdist.launcher.coordinated import CoordinatedSupervisor
from tfdist.launcher.failure import Outcome
from tfdist.launcher.job import exit_code
from tfdist.launcher.report import failure_report
from tfdist.launcher.supervisor import Phase
from tfdist.launcher.tasks import with_servers

CHIEF, FIRST, SECOND, PS, EVALUATOR = range(5)
KILLED = -signal.SIGKILL


class Scene:
    def __init__(self, evaluator=False, restarts=0, blaming=(), can_restart=True):
        self.sent: list[tuple[int, int]] = []
        self.said: list[str] = []
        self.restarted: list[int] = []
        tasks = with_servers(2, 1, evaluator)
        self.supervisor = CoordinatedSupervisor(
            running=set(range(len(tasks))),
            grace=5.0,
            send=lambda rank, number: self.sent.append((rank, number)),
            say=self.said.append,
            blames_peer=lambda rank: rank in blaming,
            tasks=tasks,
            restart=lambda rank: self.restarted.append(rank) is None and can_restart,
            restarts_left=restarts,
        )

    def end(self, rank, returncode, at):
        self.supervisor.ended(Outcome(rank, returncode, at), at + 0.001)

    def end_all(self, at, returncode=0):
        for rank in sorted(self.supervisor.running):
            self.end(rank, returncode, at)

    def report(self):
        return list(failure_report(self.supervisor, lambda rank: [f"log of {rank}"], 0.0))

    @property
    def code(self):
        assert not self.supervisor.running
        return exit_code(self.supervisor)


def test_all_ends_well():
    scene = Scene(evaluator=True)
    scene.end(CHIEF, 0, 10.0)
    scene.end_all(11.0)
    assert scene.sent == scene.said == scene.report() == []
    assert scene.code == 0


def test_the_exit_code_is_the_chiefs_whatever_the_servers_say():
    scene = Scene()
    scene.end(CHIEF, 0, 10.0)
    scene.end(PS, 1, 11.0)
    scene.end_all(11.0, KILLED)
    assert scene.code == 0
    assert scene.report() == []


def test_a_chief_that_fails_takes_all_along():
    scene = Scene()
    scene.end(CHIEF, 3, 10.0)
    assert scene.sent == [(rank, signal.SIGTERM) for rank in (FIRST, SECOND, PS)]
    assert scene.said == ["chief failed (exit code 3); ending worker 0, worker 1, ps 0"]
    scene.end_all(11.0, -signal.SIGTERM)
    assert scene.code == 3
    report = scene.report()
    assert report[0] == "chief failed first (exit code 3) after 10.0 s"
    assert "the last lines of chief's log:" in report
    assert "ps 0: ended as a consequence (killed by SIGTERM, exit code 143)" in report


def test_a_worker_that_dies_does_not_end_the_job():
    scene = Scene()
    scene.end(FIRST, KILLED, 5.0)
    assert scene.said == [
        "worker 0 was killed by SIGKILL (exit code 137); the job goes on without it"
    ]
    scene.end(SECOND, KILLED, 6.0)
    assert scene.said[-1].endswith("the job goes on without it: no worker is left")
    assert scene.sent == scene.restarted == []
    scene.end(CHIEF, 0, 10.0)
    scene.end_all(11.0)
    assert scene.code == 0


def test_a_worker_is_started_again_as_often_as_allowed():
    scene = Scene(restarts=2)
    scene.end(FIRST, KILLED, 5.0)
    assert scene.said[-1].endswith("it is started again (1 restarts left)")
    scene.end(FIRST, 1, 6.0)
    assert scene.restarted == [FIRST, FIRST]
    scene.end(FIRST, 1, 7.0)
    assert scene.said[-1] == "worker 0 failed (exit code 1); the job goes on without it"
    assert FIRST not in scene.supervisor.running
    assert scene.supervisor.phase is Phase.RUNNING


def test_a_worker_that_can_not_be_started_again_is_lost():
    scene = Scene(restarts=1, can_restart=False)
    scene.end(FIRST, KILLED, 5.0)
    assert FIRST not in scene.supervisor.running


def test_a_worker_that_could_not_even_start_ends_the_job():
    scene = Scene()
    scene.end(SECOND, 1, 2.0)
    assert scene.said == ["worker 1 failed (exit code 1); ending chief, worker 0, ps 0"]
    scene.end_all(3.0, -signal.SIGTERM)
    assert scene.code == 1
    assert scene.report()[0].startswith("worker 1 failed first (exit code 1)")


def test_a_killed_ps_gives_the_chief_time_for_its_own_error():
    scene = Scene()
    scene.end(PS, KILLED, 5.0)
    assert scene.sent == []
    assert "ps 0 was killed by SIGKILL" in scene.said[0]
    scene.end(CHIEF, 1, 15.0)
    scene.end_all(16.0, 1)
    assert scene.code == 1, "the chief's"
    assert scene.report()[0].startswith("ps 0 was killed by SIGKILL (exit code 137), first of all")


def test_a_chief_that_hangs_after_a_ps_was_killed_is_ended():
    scene = Scene()
    scene.end(PS, KILLED, 5.0)
    scene.supervisor.tick(scene.supervisor.deadline)
    assert (CHIEF, signal.SIGTERM) in scene.sent
    scene.supervisor.tick(scene.supervisor.deadline)
    assert (CHIEF, signal.SIGKILL) in scene.sent
    scene.end_all(60.0, KILLED)
    assert scene.code == 137


def test_a_ps_that_only_says_that_the_chief_failed_is_not_the_cause():
    scene = Scene(blaming={PS, FIRST})
    scene.end(PS, 1, 9.9)
    scene.end(FIRST, 1, 9.9)
    assert scene.said == []
    scene.end(CHIEF, 4, 10.0)
    scene.end_all(10.5, 1)
    assert scene.code == 4
    assert scene.report()[0].startswith("chief failed first (exit code 4)")


def test_servers_that_outlive_the_chief_are_ended():
    scene = Scene()
    scene.end(CHIEF, 0, 10.0)
    scene.end(FIRST, 0, 10.5)
    for number in (signal.SIGTERM, signal.SIGKILL):
        scene.supervisor.tick(scene.supervisor.deadline)
        assert scene.sent[-2:] == [(SECOND, number), (PS, number)]
    scene.end_all(40.0, KILLED)
    assert scene.code == 0


def test_servers_that_can_not_be_killed_are_given_up():
    scene = Scene()
    scene.end(CHIEF, 0, 10.0)
    for _ in range(3):
        scene.supervisor.tick(scene.supervisor.deadline)
    assert "can't be killed" in scene.said[-1]
    assert scene.code == 0


def test_an_evaluator_may_take_its_time():
    scene = Scene(evaluator=True)
    scene.end(CHIEF, 0, 10.0)
    for rank in (FIRST, SECOND, PS):
        scene.end(rank, 0, 10.5)
    scene.supervisor.tick(scene.supervisor.deadline)
    assert scene.said == ["the chief has finished; waiting for evaluator"]
    assert scene.supervisor.deadline == float("inf")
    scene.end(EVALUATOR, 0, 1000.0)
    assert scene.code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_to_the_chief_and_the_others_follow_it(number):
    scene = Scene()
    scene.supervisor.signalled(number, 5.0)
    assert scene.sent == [(CHIEF, number)]
    scene.end(CHIEF, -number, 6.0)
    assert scene.sent[1:] == [(rank, signal.SIGTERM) for rank in (FIRST, SECOND, PS)]
    scene.end_all(7.0, -signal.SIGTERM)
    assert scene.code == 128 + number
    assert scene.report() == []


def test_a_chief_that_ends_well_after_a_signal_has_ended_the_job_well():
    scene = Scene()
    scene.supervisor.signalled(signal.SIGTERM, 5.0)
    scene.end(CHIEF, 0, 6.0)
    scene.end_all(7.0, -signal.SIGTERM)
    assert scene.code == 0


def test_a_second_ctrl_c_kills_all():
    scene = Scene()
    scene.supervisor.signalled(signal.SIGINT, 5.0)
    scene.supervisor.signalled(signal.SIGINT, 6.0)
    assert scene.sent[1:] == [(rank, signal.SIGKILL) for rank in (CHIEF, FIRST, SECOND, PS)]
    scene.end_all(6.5, KILLED)
    assert scene.code == 130
