"""Jobs of a chief, workers and ps through the command line; scripts that need no TensorFlow."""

import json
import os
import signal

import pytest

HEAD = """
import json, os, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
role, index = task["type"], task["index"]
name = f"{role}-{index}"
def wait_for(*names):
    until = time.monotonic() + 30
    while not all(os.path.exists(each) for each in names):
        assert time.monotonic() < until
        time.sleep(0.01)
def serve():
    # As a server does: until the chief has gone.
    open(f"ready-{name}", "w").write(str(os.getpid()))
    wait_for("end")
    sys.exit(0)
"""
READY = ("ready-worker-0", "ready-worker-1", "ready-ps-0")


def write(jobs, body: str) -> None:
    lines = [line.removeprefix("        ") for line in body.splitlines()]
    (jobs.folder / "script.py").write_text(HEAD + "\n".join(lines))


def words(*more: str) -> tuple[str, ...]:
    return ("--workers", "2", "--ps", "1", *more, "script.py")


def pid(jobs, name: str) -> int:
    jobs.wait_for_files(f"ready-{name}")
    jobs.wait_for(lambda: (jobs.folder / f"ready-{name}").read_text() != "", "its number")
    return int((jobs.folder / f"ready-{name}").read_text())


def test_every_process_has_its_role_prefix_and_log(jobs):
    write(
        jobs,
        """
        names = ("TFDIST_LOCAL_RANK", "TF_NUM_INTRAOP_THREADS")
        print(json.dumps([os.environ["TF_CONFIG"], *map(os.environ.get, names), sys.argv[1:]]))
        """,
    )
    ended = jobs.run(*words("--evaluator", "--log-dir", "logs"), "--ps", "3")
    assert ended.returncode == 0
    told = {}
    for line in ended.stdout.splitlines():
        label, text = line[1:].split("] ", 1)
        told[label] = json.loads(text)
    assert sorted(told) == ["chief", "evaluator", "ps 0", "worker 0", "worker 1"]
    clusters = [json.loads(values[0])["cluster"] for values in told.values()]
    assert all(cluster == clusters[0] for cluster in clusters)
    assert {role: len(found) for role, found in clusters[0].items()} == {
        "chief": 1,
        "worker": 2,
        "ps": 1,
    }
    assert json.loads(told["worker 1"][0])["task"] == {"type": "worker", "index": 1}
    assert json.loads(told["evaluator"][0])["task"] == {"type": "evaluator", "index": 0}
    assert told["worker 1"][1] == "1"
    assert told["ps 0"][2] == "1"
    assert told["chief"][3] == ["--ps", "3"]
    files = ["chief.log", "evaluator.log", "ps-0.log", "worker-0.log", "worker-1.log"]
    assert sorted(os.listdir(jobs.folder / "logs")) == files
    assert "a chief, 2 workers, 1 ps and an evaluator" in ended.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_the_chiefs_code_is_the_jobs(jobs, code):
    write(
        jobs,
        f"""
        if role != "chief":
            serve()
        wait_for{READY}
        open("end", "w").close()
        time.sleep(0.3)
        sys.exit({code})
        """,
    )
    ended = jobs.run(*words())
    assert ended.returncode == code
    assert ended.seconds < 20
    assert ("chief failed" in ended.stderr) == (code != 0)


def test_a_killed_worker_is_started_again_at_its_address(jobs):
    write(
        jobs,
        """
        if name == "worker-1" and os.path.exists("ready-worker-1"):
            open("again", "w").write(os.environ["TF_CONFIG"])
            print("here again")
            wait_for("end")
            sys.exit(0)
        if role != "chief":
            open(f"config-{name}", "w").write(os.environ["TF_CONFIG"])
            serve()
        wait_for("again")
        open("end", "w").close()
        """,
    )
    launcher = jobs.start(*words("--max-restarts", "1", "--log-dir", "logs"))
    os.kill(pid(jobs, "worker-1"), signal.SIGKILL)
    ended = jobs.finish(launcher)
    assert ended.returncode == 0
    assert (jobs.folder / "again").read_text() == (jobs.folder / "config-worker-1").read_text()
    assert (
        "worker 1 was killed by SIGKILL (exit code 137); it is started again (0 restarts left)"
        in ended.stderr
    )
    assert "[worker 1] here again" in ended.stdout
    assert "here again" in (jobs.folder / "logs" / "worker-1.log").read_text()


def test_a_killed_worker_alone_does_not_end_the_job(jobs):
    write(
        jobs,
        """
        if role != "chief":
            serve()
        wait_for("killed")
        open("end", "w").close()
        """,
    )
    launcher = jobs.start(*words())
    os.kill(pid(jobs, "worker-0"), signal.SIGKILL)
    (jobs.folder / "killed").touch()
    ended = jobs.finish(launcher)
    assert ended.returncode == 0
    assert "worker 0 was killed by SIGKILL (exit code 137); the job goes on without" in ended.stderr


def test_a_killed_ps_is_the_root_cause_and_the_chief_may_speak_first(jobs):
    write(
        jobs,
        """
        if role != "chief":
            serve()
        wait_for("killed")
        raise ValueError("ps 0 is gone")
        """,
    )
    launcher = jobs.start(*words())
    os.kill(pid(jobs, "ps-0"), signal.SIGKILL)
    (jobs.folder / "killed").touch()
    ended = jobs.finish(launcher)
    assert ended.returncode == 1
    assert "[chief] ValueError: ps 0 is gone" in ended.stderr
    assert "ps 0 was killed by SIGKILL (exit code 137), first of all," in ended.stderr


def test_a_killed_chief_takes_all_along(jobs):
    write(
        jobs,
        """
        if role != "chief":
            serve()
        open(f"ready-{name}", "w").write(str(os.getpid()))
        time.sleep(600)
        """,
    )
    launcher = jobs.start(*words("--evaluator"))
    jobs.wait_for_files(*READY, "ready-evaluator-0")
    os.kill(pid(jobs, "chief-0"), signal.SIGKILL)
    ended = jobs.finish(launcher, timeout=20)
    assert ended.returncode == 137
    assert "chief was killed by SIGKILL (exit code 137), first of all," in ended.stderr


def test_ctrl_c_lets_the_chief_save_and_ends_the_others(jobs):
    write(
        jobs,
        """
        if role != "chief":
            serve()
        wait_for("ready-worker-0", "ready-worker-1", "ready-ps-0")
        try:
            open("ready-chief-0", "w").write(str(os.getpid()))
            time.sleep(600)
        except KeyboardInterrupt:
            print("saved")
            raise
        """,
    )
    launcher = jobs.start(*words())
    jobs.wait_for_files(*READY)
    pid(jobs, "chief-0")
    launcher.send_signal(signal.SIGINT)
    ended = jobs.finish(launcher, timeout=20)
    assert ended.returncode == 130
    assert "[chief] saved" in ended.stdout
    assert "SIGINT was passed on to the chief (Ctrl-C again kills)" in ended.stderr
