"""A real job of a chief, workers and ps: a worker is killed, started again, and rejoins."""

import os
import re
import signal
from pathlib import Path

JOB = Path(__file__).parents[1] / "serving" / "job.py"


def test_a_worker_killed_in_the_middle_is_started_again_and_works_on(jobs):
    words = ("--workers", "2", "--ps", "1", "--max-restarts", "1", "--log-dir", "logs")
    launcher = jobs.start(*words, str(JOB), "done", str(jobs.folder))
    jobs.wait_for_files("logs/worker-1.log")
    log = jobs.folder / "logs" / "worker-1.log"
    jobs.wait_for(lambda: "STEP" in log.read_text(), "worker 1 works", 120)
    (first,) = re.findall(r"PID (\d+)", log.read_text())
    os.kill(int(first), signal.SIGKILL)
    jobs.wait_for(
        lambda: log.read_text().count("PID") == 2 and "STEP" in log.read_text().rsplit("PID", 1)[1],
        "worker 1 works again",
        120,
    )
    (jobs.folder / "end").touch()
    ended = jobs.finish(launcher)
    assert ended.returncode == 0, ended.stderr
    assert "worker 1 was killed by SIGKILL" in ended.stderr
    for name in ("worker 0", "worker 1", "ps 0"):
        line = rf"\[{name}\] .*the chief has finished: {name} ends"
        assert re.search(line, ended.stderr), ended.stderr
