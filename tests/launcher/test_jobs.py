"""Jobs that run: real processes, through the command line."""

import json
import os
import pty
import select
import sys

import pytest

TELL = """
    import json, os, sys
    names = [n for n in os.environ if n.startswith(("TF", "OMP", "X_")) or n == "PYTHONUNBUFFERED"]
    print(json.dumps({"args": sys.argv[1:], "env": {n: os.environ[n] for n in names}}))
"""


def by_rank(text: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        rank, line = line[1:].split("] ", 1)
        found.setdefault(int(rank), []).append(line)
    return found


def test_workers_find_their_cluster_and_the_arguments_are_the_scripts(jobs):
    jobs.script(TELL)
    words = ["--help", "-n", "9", "--", "-m", "x", "--version"]
    ended = jobs.run("-n", "2", "--env", "X_A=1=2", "--env", "X_B=", "script.py", *words)
    assert ended.returncode == 0
    told = {rank: json.loads(lines[0]) for rank, lines in by_rank(ended.stdout).items()}
    assert sorted(told) == [0, 1]
    clusters = []
    for rank in told:
        assert told[rank]["args"] == words
        env = told[rank]["env"]
        config = json.loads(env["TF_CONFIG"])
        clusters.append(config["cluster"]["worker"])
        assert config["task"] == {"type": "worker", "index": rank}
        assert env["TFDIST_RANK"] == env["TFDIST_LOCAL_RANK"] == str(rank)
        assert env["TFDIST_WORLD_SIZE"] == "2"
        assert env["X_A"] == "1=2"
        assert env["X_B"] == ""
    assert clusters[0] == clusters[1]
    assert len(set(clusters[0])) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["-np", "2", "python", "script.py", "a", "-np"],
        ["-n2", "-m", "script", "a", "-np"],
        ["-n", "2", sys.executable, "-u", "script.py", "a", "-np"],
        ["-n", "2", "--", "script.py", "a", "-np"],
    ],
)
def test_every_way_to_name_the_program(jobs, words):
    jobs.script(TELL)
    ended = jobs.run(*words)
    assert ended.returncode == 0, ended.stderr
    assert all(
        json.loads(lines[0])["args"] == ["a", "-np"] for lines in by_rank(ended.stdout).values()
    )


def test_an_executable(jobs):
    program = jobs.script("#!/bin/sh\necho rank $TFDIST_RANK: $*\n", "program")
    program.chmod(0o755)
    ended = jobs.run("-n", "2", "./program", "a b")
    assert sorted(ended.stdout.splitlines()) == ["[0] rank 0: a b", "[1] rank 1: a b"]


def test_streams_stay_apart_and_the_launcher_speaks_on_stderr(jobs):
    jobs.script("""
        import os, sys
        print("to stdout")
        print("to stderr", file=sys.stderr)
    """)
    ended = jobs.run("-n", "2", "script.py")
    assert sorted(ended.stdout.splitlines()) == ["[0] to stdout", "[1] to stdout"]
    said = ended.stderr.splitlines()
    assert sorted(line for line in said if line[1].isdigit()) == ["[0] to stderr", "[1] to stderr"]
    assert any("2 workers" in line and "OMP_NUM_THREADS=" in line for line in said)


def test_no_prefix_leaves_the_output_as_it_is(jobs):
    jobs.script("print('a line'); print('no newline', end='')")
    assert jobs.run("-n", "1", "--no-prefix", "script.py").stdout == "a line\nno newline\n"


def test_100_000_lines_arrive_in_order_and_whole(jobs):
    jobs.script("""
        import os
        for number in range(50_000):
            print(number, "x" * (number % 97))
    """)
    ended = jobs.run("-n", "2", "script.py", timeout=120)
    assert ended.returncode == 0
    expected = [f"{number} {'x' * (number % 97)}" for number in range(50_000)]
    assert by_rank(ended.stdout) == {0: expected, 1: expected}


def test_the_last_words_are_not_lost(jobs):
    jobs.script("""
        import os, sys
        os.write(1, b"o" * 300_000 + b"\\nlast stdout")
        os.write(2, b"e" * 300_000 + b"\\nlast stderr")
        os._exit(0)
    """)
    ended = jobs.run("-n", "2", "script.py")
    for text, name in ((ended.stdout, "stdout"), (ended.stderr, "stderr")):
        for rank in "01":
            assert f"[{rank}] {name[3] * 300_000}\n" in text
            assert f"[{rank}] last {name}\n" in text


def test_a_progress_bar_in_a_file_is_its_last_state(jobs):
    jobs.script("""
        import sys, time
        for step in range(1, 4):
            sys.stdout.write("\\b" * 30 + "\\r" + f"\\x1b[1m{step}/3\\x1b[0m loss: 0.{step}")
            sys.stdout.flush()
            time.sleep(0.02)
        print()
        print("done")
    """)
    ended = jobs.run("-n", "1", "script.py")
    assert ended.stdout == "[0] 3/3 loss: 0.3\n[0] done\n"


def test_log_files_hold_everything_unprefixed(jobs):
    jobs.script("""
        import os, sys
        print("rank", os.environ["TFDIST_RANK"])
        sys.stdout.write("\\r1/2\\r2/2\\n")
        sys.stdout.flush()
        print("an error", file=sys.stderr)
        print("the end", end="")
    """)
    log_dir = jobs.folder / "deep" / "logs"
    assert jobs.run("-n", "2", "--log-dir", str(log_dir), "script.py").returncode == 0
    assert sorted(os.listdir(log_dir)) == ["rank-0.log", "rank-1.log"]
    for rank in range(2):
        log = (log_dir / f"rank-{rank}.log").read_bytes().decode()
        assert f"rank {rank}\n" in log
        assert "\r1/2\r2/2\n" in log
        assert "an error\n" in log
        assert log.replace("an error\n", "").endswith("the end")


def test_workers_have_no_keyboard(jobs):
    jobs.script("import sys; print(repr(sys.stdin.read()))")
    assert jobs.run("-n", "1", "script.py").stdout == "[0] ''\n"


def read_terminal(descriptor: int, seconds: float = 30.0) -> bytes:
    """Reads a pseudo-terminal until the program on its other side has gone."""
    found = b""
    while select.select([descriptor], [], [], seconds)[0]:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:  # how Linux reports the end of a terminal
            break
        if not chunk:
            break
        found += chunk
    return found


def test_on_a_terminal_ranks_are_coloured_and_bars_move(jobs):
    jobs.script("""
        import os, sys, time
        if os.environ["TFDIST_RANK"] == "1":
            time.sleep(0.6)
            print("a line of rank 1")
            sys.exit()
        for step in range(1, 5):
            sys.stdout.write("\\b" * 30 + "\\r" + f"{step}/4 [bar]")
            sys.stdout.flush()
            time.sleep(0.4)
        print()
    """)
    parent, child = pty.openpty()
    env = {"TERM": "xterm-256color", "COLUMNS": "80", "NO_COLOR": ""}
    launcher = jobs.start("-n", "2", "script.py", stdout=child, env=env)
    os.close(child)
    screen = read_terminal(parent)
    os.close(parent)
    assert jobs.finish(launcher).returncode == 0
    assert b"\x1b[36m[0] \x1b[0m1/4 [bar]" in screen  # shown although its line has no end yet
    assert b"\r\x1b[K\x1b[35m[1] \x1b[0ma line of rank 1\r\n" in screen
    after = screen.split(b"a line of rank 1")[1]
    assert after.startswith(b"\r\n\x1b[36m[0] \x1b[0m")  # the bar is back below it
    assert screen.endswith(b"4/4 [bar]\r\n")
