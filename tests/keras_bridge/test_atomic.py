"""Replacing files and folders: whole or not at all, whenever the writer dies."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import child_environment, deadline, end, run_group

from tfdist.keras_bridge import atomic

WRITER = Path(__file__).with_name("atomic_writer.py")


def listing(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def write(target: Path, text: str) -> None:
    with atomic.replacing(target) as staged:
        Path(staged).write_text(text)


def write_folder(target: Path, text: str, files: int = 3) -> None:
    with atomic.replacing(target) as staged:
        os.makedirs(Path(staged, "variables"))
        for index in range(files):
            Path(staged, "variables", f"part{index}").write_text(text)


def leftover(folder: Path, **files: str) -> Path:
    """Makes what a writer that was killed on this host leaves behind."""
    host = atomic.socket.gethostname()
    staging = folder / f".m.keras.tfdist-{host}-{os.getpid()}-0123abcd"
    (staging / "payload").mkdir(parents=True)
    (staging / "lock").touch()
    for name, text in files.items():
        (staging / name.replace("__", "/").replace("_dot_", ".")).write_text(text)
    return staging


def test_a_file_appears_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    write(tmp_path / "m.keras", "one")
    write(tmp_path / "m.keras", "two")
    assert (tmp_path / "m.keras").read_text() == "two"
    assert listing(tmp_path) == ["m.keras"]


def test_the_staged_path_has_the_targets_name_and_file_system(tmp_path: Path) -> None:
    with atomic.replacing(tmp_path / "a.weights.h5") as staged:
        assert os.path.basename(staged) == "a.weights.h5"
        assert os.stat(os.path.dirname(staged)).st_dev == os.stat(tmp_path).st_dev
        Path(staged).touch()


def test_an_error_in_the_block_leaves_the_target_and_no_trace(tmp_path: Path) -> None:
    write(tmp_path / "m.keras", "one")
    with pytest.raises(OSError, match="disk"), atomic.replacing(tmp_path / "m.keras") as staged:
        Path(staged).write_text("half")
        raise OSError(errno.ENOSPC, "disk full")
    assert (tmp_path / "m.keras").read_text() == "one"
    assert listing(tmp_path) == ["m.keras"]


def test_a_disk_without_room_is_an_error_before_the_write(tmp_path: Path) -> None:
    write(tmp_path / "m.keras", "one")
    with (
        pytest.raises(OSError, match="1,125,899,906,842,624 bytes are needed"),
        atomic.replacing(tmp_path / "m.keras", size=2**50) as staged,
    ):
        raise AssertionError(f"began to write {staged}")
    assert (tmp_path / "m.keras").read_text() == "one"
    assert listing(tmp_path) == ["m.keras"]


def test_the_mode_of_a_replaced_file_stays(tmp_path: Path) -> None:
    write(tmp_path / "m.keras", "one")
    os.chmod(tmp_path / "m.keras", 0o640)
    write(tmp_path / "m.keras", "two")
    assert os.stat(tmp_path / "m.keras").st_mode & 0o777 == 0o640


def test_a_symbolic_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real" / "m.keras", tmp_path / "m.keras")
    write(tmp_path / "m.keras", "one")
    assert os.path.islink(tmp_path / "m.keras")
    assert (tmp_path / "real" / "m.keras").read_text() == "one"


def test_a_device_is_written_directly() -> None:
    with atomic.replacing("/dev/null") as staged:
        assert staged == "/dev/null"


def test_a_file_does_not_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m.keras").mkdir()
    with pytest.raises(IsADirectoryError):
        write(tmp_path / "m.keras", "one")
    assert listing(tmp_path) == ["m.keras"]


def test_a_folder_does_not_replace_a_file(tmp_path: Path) -> None:
    write(tmp_path / "export", "one")
    with pytest.raises(NotADirectoryError):
        write_folder(tmp_path / "export", "two")
    assert listing(tmp_path) == ["export"]


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_swapped_whole(
    tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    write_folder(tmp_path / "export", "one", files=4)
    write_folder(tmp_path / "export", "two", files=2)
    assert listing(tmp_path) == ["export"]
    assert listing(tmp_path / "export" / "variables") == ["part0", "part1"]
    assert (tmp_path / "export" / "variables" / "part0").read_text() == "two"


def test_several_files_move_together_the_index_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    real = os.replace
    monkeypatch.setattr(
        os, "replace", lambda a, b: (moved.append(os.path.basename(b)), real(a, b))[1]
    )
    with atomic.replacing(tmp_path / "a.weights.json") as staged:
        folder = Path(staged).parent
        for name in ("z_00001.weights.h5", "a_00000.weights.h5", "a.weights.json"):
            (folder / name).write_text(name)
    assert moved[-1] == "a.weights.json"
    assert listing(tmp_path) == ["a.weights.json", "a_00000.weights.h5", "z_00001.weights.h5"]


def test_the_leftover_of_a_killed_writer_goes_with_the_next_write(tmp_path: Path) -> None:
    leftover(tmp_path, payload__m_dot_keras="half")
    write(tmp_path / "other.keras", "one")
    assert listing(tmp_path) == ["other.keras"]


def test_an_announced_move_is_finished_by_the_next_writer(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("old")
    staging = leftover(tmp_path, payload__a="new", payload__b="new", complete="a\nb")
    (staging / "payload" / "a").replace(tmp_path / "a")  # killed after the first of two
    os.utime(tmp_path / "b", (1, 1))
    assert atomic.clean_leftovers(tmp_path) == [staging.name]
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == "new"
    assert listing(tmp_path) == ["a", "b"]


def test_an_announced_move_does_not_undo_a_newer_write(tmp_path: Path) -> None:
    staging = leftover(tmp_path, payload__a="old", complete="a")
    os.utime(staging / "complete", (1, 1))
    (tmp_path / "a").write_text("newer")
    atomic.clean_leftovers(tmp_path)
    assert (tmp_path / "a").read_text() == "newer"


def test_a_live_writer_is_left_alone(tmp_path: Path) -> None:
    with atomic.replacing(tmp_path / "a") as staged:
        Path(staged).write_text("one")
        assert atomic.clean_leftovers(tmp_path) == []
        write(tmp_path / "b", "two")
    assert listing(tmp_path) == ["a", "b"]


@pytest.mark.parametrize(
    ("rename", "age", "goes"),
    [
        (lambda path: (path / "lock").unlink(), 5, False),  # may be about to lock
        (lambda path: (path / "lock").unlink(), 100, True),
        (lambda path: (path / "lock").rename(path.parent / "x") and rename_to_ended(path), 5, True),
        (lambda path: path.rename(path.parent / ".m.tfdist-elsewhere-1-0123abcd"), 100, False),
        (lambda path: path.rename(path.parent / ".m.tfdist-elsewhere-1-0123abcd"), 4000, True),
        (lambda path: path.rename(path.parent / ".m.tfdist-user-folder"), 1e6, False),
        (lambda path: path.rename(path.parent / "m.tfdist-elsewhere-1-0123abcd"), 1e6, False),
    ],
)
def test_what_counts_as_abandoned(
    tmp_path: Path, rename: Callable[[Path], object], age: float, goes: bool
) -> None:
    rename(leftover(tmp_path))
    (folder,) = (entry for entry in tmp_path.iterdir() if entry.is_dir())
    os.utime(folder, (time.time() - age, time.time() - age))
    assert bool(atomic.clean_leftovers(tmp_path)) is goes


def rename_to_ended(staging: Path) -> None:
    """Gives a leftover the process id of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=deadline(10))
    staging.rename(staging.with_name(staging.name.replace(str(os.getpid()), str(ended.pid))))


def check_whole(target: Path) -> int:
    """Returns the version that the target holds; fails unless every byte is of that version."""
    files = sorted(target.rglob("*")) if target.is_dir() else [target]
    versions = set()
    for file in files:
        if file.is_dir():
            continue
        version, _, rest = file.read_bytes().partition(b"\n")
        digest, _, body = rest.partition(b"\n")
        assert hashlib.sha256(body).hexdigest().encode() == digest
        versions.add(int(version))
    assert len(versions) == 1, f"a mix of versions: {versions}"
    return versions.pop()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_writer_killed_at_any_moment_leaves_a_whole_version(tmp_path: Path, kind: str) -> None:
    random.seed(7)
    target = tmp_path / "target"
    last = 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, str(WRITER), str(target), kind, str(last)],
            stdout=subprocess.PIPE,
            env=child_environment(),
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"written\n"
            time.sleep(random.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=deadline(10))
        finally:
            end([process])
            process.stdout.close()
        version = check_whole(target)
        assert version > last, "a version that had been written is gone"
        last = version
    atomic.clean_leftovers(tmp_path)
    assert listing(tmp_path) == ["target"]


def test_models_saved_by_a_killed_process_load(tmp_path: Path) -> None:
    saver = WRITER.with_name("killed_saver.py")
    rounds = 6
    (result,) = run_group(saver, 1, [str(tmp_path), str(rounds)], timeout=150, cluster=False)
    assert result.stdout.count("version") == rounds
    assert not [name for name in listing(tmp_path) if name.startswith(".")]
