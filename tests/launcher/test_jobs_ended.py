"""Jobs that fail, are interrupted, or lose their launcher: everything ends, nothing stays."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

# Writes a file when it is where the test wants it, and then stays.
STAY = """
    import os, pathlib, signal, sys, time
    rank = os.environ["TFDIST_RANK"]
    def ready():
        pathlib.Path("ready-" + rank).touch()
    def peer_is_ready():
        while not pathlib.Path("ready-" + str(1 - int(rank))).exists():
            time.sleep(0.01)
"""


def stay(jobs, source: str) -> None:
    path = jobs.script(STAY)
    path.write_text(path.read_text() + textwrap.dedent(source))


def test_a_failure_ends_the_others_with_its_code_and_the_end_of_its_log(jobs):
    stay(
        jobs,
        """
        if rank == "1":
            peer_is_ready()
            for number in range(100):
                print("line", number, file=sys.stderr)
            sys.exit(3)
        ready()
        time.sleep(600)
        """,
    )
    ended = jobs.run("-n", "2", "script.py")
    assert ended.returncode == 3
    report = ended.stderr.split("worker 1 failed first (exit code 3) after ")[1]
    assert "  | line 99\n" in report
    assert "  | line 70\n" in report
    assert "line 69" not in report
    assert "worker 0: ended as a consequence (killed by SIGTERM, exit code 143)" in report


def test_a_worker_that_ignores_sigterm_is_killed(jobs):
    stay(
        jobs,
        """
        if rank == "0":
            peer_is_ready()
            raise ValueError("user bug")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready()
        time.sleep(600)
        """,
    )
    ended = jobs.run("-n", "2", "--grace", "0.5", "script.py")
    assert ended.returncode == 1
    assert ended.seconds < 10
    assert "worker 1 did not end within 0.5 s: killed" in ended.stderr
    report = ended.stderr.split("worker 0 failed first (exit code 1)")[1]
    assert "  | ValueError: user bug" in report


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGBUS, 135)])
def test_a_worker_killed_by_a_signal(jobs, number, code):
    stay(
        jobs,
        f"""
        if rank == "0":
            peer_is_ready()
            os.kill(os.getpid(), {int(number)})
        ready()
        time.sleep(600)
        """,
    )
    ended = jobs.run("-n", "2", "--env", "PYTHONFAULTHANDLER=", "script.py")
    assert ended.returncode == code
    assert f"worker 0 was killed by {number.name} (exit code {code})" in ended.stderr
    assert ("/dev/shm" in ended.stderr) == (number == signal.SIGBUS)


def test_the_first_of_two_failures_close_together_counts(jobs):
    # The end of rank 1 closes the pipe, and that ends rank 0 soon after. With no pause at all the
    # kernel itself may let rank 0 go first: it closes a process's files before it is over.
    os.mkfifo(jobs.folder / "fifo")
    stay(
        jobs,
        """
        if rank == "1":
            writing = open("fifo", "w")
            os._exit(7)
        open("fifo").read()
        time.sleep(0.1)
        os._exit(5)
        """,
    )
    for _ in range(3):
        ended = jobs.run("-n", "2", "script.py")
        assert ended.returncode == 7
        assert "worker 1 failed first (exit code 7)" in ended.stderr


def test_a_worker_that_finishes_lets_the_others_run_on(jobs):
    stay(
        jobs,
        """
        if rank == "1":
            sys.exit(0)
        time.sleep(1.0)
        print("still here")
        """,
    )
    ended = jobs.run("-n", "2", "script.py")
    assert ended.returncode == 0
    assert "[0] still here" in ended.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_all_workers(jobs, number):
    stay(
        jobs,
        f"""
        def stop(number, frame):
            print("got", signal.Signals(number).name)
            sys.exit(1)
        signal.signal({int(number)}, stop)
        ready()
        time.sleep(600)
        """,
    )
    launcher = jobs.start("-n", "2", "script.py")
    jobs.wait_for_files("ready-0", "ready-1")
    launcher.send_signal(number)
    ended = jobs.finish(launcher)
    assert ended.returncode == 128 + number
    assert sorted(ended.stdout.splitlines()) == [f"[{r}] got {number.name}" for r in range(2)]
    assert f"{number.name} was passed on to workers 0, 1" in ended.stderr


def test_ctrl_c_twice_kills_at_once(jobs):
    stay(
        jobs,
        """
        signal.signal(signal.SIGINT, lambda *_: print("not now"))
        ready()
        while True:
            time.sleep(600)
        """,
    )
    launcher = jobs.start("-n", "2", "--grace", "300", "script.py")
    jobs.wait_for_files("ready-0", "ready-1")
    launcher.send_signal(signal.SIGINT)
    time.sleep(0.8)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    ended = jobs.finish(launcher, timeout=10)
    assert ended.returncode == 130
    assert sorted(ended.stdout.splitlines()) == ["[0] not now", "[1] not now"]


GRANDCHILDREN = """
    import subprocess
    nap = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(nap)                               # in the worker's group
    subprocess.Popen(nap, start_new_session=True)       # a daemon of its own
    subprocess.Popen(nap, start_new_session=True, stdout=subprocess.DEVNULL,
                     env={k: v for k, v in os.environ.items() if k != "TFDIST_RANK"})
    ready()
"""


def test_grandchildren_go_when_a_worker_fails(jobs):
    stay(
        jobs,
        GRANDCHILDREN
        + """
    if rank == "1":
        peer_is_ready()
        sys.exit(4)
    time.sleep(600)
    """,
    )
    assert jobs.run("-n", "2", "script.py").returncode == 4


def test_what_a_good_job_leaves_behind_is_ended_and_said(jobs):
    stay(jobs, GRANDCHILDREN)
    ended = jobs.run("-n", "2", "script.py")
    assert ended.returncode == 0
    assert "the job left processes behind, which were ended: " in ended.stderr


def test_grandchildren_go_when_the_launcher_is_told_to_end(jobs):
    stay(jobs, GRANDCHILDREN + "    time.sleep(600)\n")
    launcher = jobs.start("-n", "2", "script.py")
    jobs.wait_for_files("ready-0", "ready-1")
    launcher.terminate()
    assert jobs.finish(launcher).returncode == 143


def test_all_go_when_the_launcher_is_killed(jobs):
    stay(jobs, GRANDCHILDREN + "    time.sleep(600)\n")
    launcher = jobs.start(
        "-n", "2", "script.py", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    jobs.wait_for_files("ready-0", "ready-1")
    assert len(jobs.alive()) == 1 + 1 + 2 + 6  # the launcher, its guard, workers, grandchildren
    launcher.kill()
    assert launcher.wait(timeout=10) == -signal.SIGKILL
    jobs.wait_for(lambda: jobs.alive() == [], "all processes have gone")


def test_a_launcher_in_a_job_takes_its_workers_along(jobs):
    stay(jobs, "ready()\ntime.sleep(600)\n")
    launcher = jobs.start(
        *("-n", "1", "--grace", "0", sys.executable, "-m", "tfdist", "run", "-n", "2", "script.py")
    )
    jobs.wait_for_files("ready-0", "ready-1")
    launcher.terminate()
    assert jobs.finish(launcher).returncode == 143


def test_output_that_nobody_reads_ends_the_job(jobs):
    stay(
        jobs,
        """
        print("first", flush=True)
        while True:
            print("more", flush=True)
            time.sleep(0.05)
        """,
    )
    reading, writing = os.pipe()
    launcher = jobs.start("-n", "2", "script.py", stdout=writing)
    os.close(writing)
    assert os.read(reading, 10)
    os.close(reading)
    ended = jobs.finish(launcher, timeout=20)
    assert ended.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in ended.stderr


def test_a_program_the_system_refuses_is_one_line(jobs):
    program = jobs.script("\0\1 not a program", "program")
    program.chmod(0o755)
    ended = jobs.run("-n", "2", "./program")
    assert ended.returncode == 2
    (line,) = (line for line in ended.stderr.splitlines() if not line.startswith("[tfdist]"))
    assert line.startswith("tfdist run: Worker 0 can't be started")
