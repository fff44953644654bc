"""What the chief of a cluster tells its servers, by the way in which its program ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.processes import child_environment, deadline

SCRIPT = """
import sys, threading
import tfdist
from absl import app
from tfdist.serving import ending

def main(argv=()):
    jobs = {"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",), "ps": ("127.0.0.1:3",)}
    ending.announce_end = lambda cluster, outcome: print("told:", outcome)
    ending.install_end(tfdist.Cluster(jobs, "chief", 0))
    {inside}

if __name__ == "__main__":
    {outside}
"""


@pytest.mark.parametrize(
    ("inside", "outside", "code", "told"),
    [
        ("pass", "main()", 0, "done"),
        ("return 0", "sys.exit(main())", 0, "done"),
        ("return 2", "sys.exit(main())", 2, "failed: exit code 2"),
        ("return 2", "app.run(main)", 2, "failed: exit code 2"),
        ("return None", "app.run(main)", 0, "done"),
        ("exit(3)", "main()", 3, "failed: exit code 3"),
        ("sys.exit('no data')", "main()", 1, "failed: exit code 1 (no data)"),
        ("raise ValueError('bug\\nmore')", "app.run(main)", 1, "failed: ValueError: bug"),
        ("raise KeyboardInterrupt", "main()", None, "failed: KeyboardInterrupt"),
        ("pass", "try: sys.exit(4)\n    except SystemExit: main()", 0, "done"),
        (
            "t = threading.Thread(target=lambda: sys.exit(5)); t.start(); t.join()",
            "main()",
            0,
            "done",
        ),
    ],
)
def test_how_a_program_ends(inside, outside, code, told):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{inside}", inside).replace("{outside}", outside)],
        capture_output=True,
        text=True,
        timeout=deadline(60),
        env=child_environment(),
    )
    assert f"told: {told}" in done.stdout.splitlines(), done.stderr
    assert code is None or done.returncode == code


def test_a_fork_that_ends_tells_nobody():
    inside = "import os; os.fork() or sys.exit(0); os.wait()"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{inside}", inside).replace("{outside}", "main()")],
        capture_output=True,
        text=True,
        timeout=deadline(60),
        env=child_environment(),
    )
    assert done.stdout.count("told:") == 1, done.stderr
