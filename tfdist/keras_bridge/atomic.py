"""Files and folders that are replaced whole, or not at all.

    folder/
      model.keras                                  the version that readers see
      .model.keras.tfdist-HOST-PID-TOKEN/          the staging folder of one write
        lock                                       held (flock) for as long as the writer lives
        payload/model.keras                        written here first, then moved over the target
        complete                                   only when the move takes more than one rename

The last step is one rename, so a writer that is killed at any moment leaves the previous version
readable. What a killed writer leaves behind is removed by the next write into the same folder:
its lock is free, because the kernel drops a lock with the process that held it.

A move that needs several renames (a set of files, or a folder where the file system can't exchange
two names) is announced by the file `complete`: from then on it is finished by whoever finds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # Windows has no flock; leftovers are then told by their age alone.
    fcntl = None  # type: ignore[assignment]

__all__ = ["clean_leftovers", "replacing"]

_STAGING = re.compile(r"^\..*\.tfdist-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}$")
_LOCK, _PAYLOAD, _ROOM = "lock", "payload", "room"
_COMPLETE, _PREVIOUS = "complete", "previous"

# How old a staging folder has to be to count as abandoned, in seconds, by what is known about it.
_AGE_UNLOCKED = 60.0  # its writer may be between creating it and locking it
_AGE_OTHER_HOST = 3600.0  # its lock is free, but a network file system may not share locks
_AGE_UNKNOWN = 86400.0  # the file system has no locks


@contextlib.contextmanager
def replacing(target: str | os.PathLike[str], size: int = 0) -> Iterator[str]:
    """Yields a path to write to; moves what was written there over `target` on success.

    The block may create a file, a folder, or several files beside the yielded path (which has the
    target's name). When it raises, everything it wrote is removed and the target stays as it was.

    Args:
        target: the file or folder to create or replace. Its folder must exist.
        size: about how many bytes will be written. A disk that has no room for them is an error
            before anything is written; HDF5 takes the whole process down when it hits the end.

    Yields:
        A path with the target's name inside a staging folder on the same file system. A target
        that is neither file nor folder, such as a pipe, is yielded itself.

    Raises:
        OSError: the staging folder can't be created, the disk has no room, or the result can't be
            moved into place.
    """
    final = os.path.realpath(os.fspath(target))  # write through a symbolic link, as open() does
    if os.path.exists(final) and not (os.path.isfile(final) or os.path.isdir(final)):
        yield final
        return
    folder, name = os.path.split(final)
    clean_leftovers(folder)
    with _staging_folder(folder, name) as staging:
        payload = os.path.join(staging, _PAYLOAD)
        os.mkdir(payload)
        _check_room(staging, size)
        yield os.path.join(payload, name)
        _commit(staging, folder, last=name)


def clean_leftovers(folder: str | os.PathLike[str]) -> list[str]:
    """Removes the staging folders of killed writers; finishes the moves that they had announced.

    Args:
        folder: the folder that holds the targets.

    Returns:
        The names of the staging folders that were removed.
    """
    removed = []
    try:
        names = [entry.name for entry in os.scandir(folder) if _STAGING.match(entry.name)]
    except OSError:
        return []  # nothing to clean where nothing can be listed
    for name in names:
        staging = os.path.join(folder, name)
        # Another writer may be cleaning the same folder; whoever comes second finds nothing.
        with contextlib.suppress(OSError):
            if _is_abandoned(staging):
                if os.path.exists(os.path.join(staging, _COMPLETE)):
                    _finish_moves(staging, os.fspath(folder))
                shutil.rmtree(staging)
                removed.append(name)
    return removed


@contextlib.contextmanager
def _staging_folder(folder: str, name: str) -> Iterator[str]:
    writer = f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"
    staging = os.path.join(folder, f".{name[:40]}.tfdist-{writer}")
    os.mkdir(staging)
    lock = None
    try:
        lock = os.open(os.path.join(staging, _LOCK), os.O_CREAT | os.O_RDWR)
        if fcntl is not None:
            with contextlib.suppress(OSError):  # no locks here: told by age instead
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _check_room(staging: str, size: int) -> None:
    """Reserves `size` bytes for a moment, which also asks quotas; without support, it passes."""
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None) if fcntl else None
    if fallocate is None or not size:
        return
    path = os.path.join(staging, _ROOM)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        if fallocate(descriptor, 0, ctypes.c_long(0), ctypes.c_long(size)) != 0:
            code = ctypes.get_errno()
            if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise OSError(code, f"{os.strerror(code)}: {size:,} bytes are needed")
    finally:
        os.close(descriptor)
        os.unlink(path)


def _host() -> str:
    return re.sub(r"[^\w.]", "_", socket.gethostname())[:60]


def _is_abandoned(staging: str) -> bool:
    age = time.time() - os.stat(staging).st_mtime
    match = _STAGING.match(os.path.basename(staging))
    same_host = match is not None and match["host"] == _host()
    try:
        lock = os.open(os.path.join(staging, _LOCK), os.O_RDWR)
    except FileNotFoundError:
        gone = same_host and match is not None and not _is_running(int(match["pid"]))
        return gone or age > _AGE_UNLOCKED
    try:
        if fcntl is None:
            return age > _AGE_UNKNOWN
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return age > _AGE_UNKNOWN
        return same_host or age > _AGE_OTHER_HOST
    finally:
        os.close(lock)


def _is_running(pid: int) -> bool:
    if fcntl is None:
        return True  # on Windows, os.kill(pid, 0) would not ask but kill
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to somebody else
    return True


def _commit(staging: str, folder: str, last: str) -> None:
    """Moves the payload into `folder`, the entry called `last` after the others."""
    payload = os.path.join(staging, _PAYLOAD)
    names = sorted(os.listdir(payload), key=lambda name: (name == last, name))
    for name in names:
        _flush_tree(os.path.join(payload, name))
    single = len(names) == 1
    if single and _move_at_once(os.path.join(payload, names[0]), os.path.join(folder, names[0])):
        _flush(folder)
        return
    with open(os.path.join(staging, _COMPLETE), "w", encoding="utf-8") as marker:
        marker.write("\n".join(names))
        marker.flush()
        os.fsync(marker.fileno())
    _flush(payload)
    _flush(staging)
    _finish_moves(staging, folder)


def _finish_moves(staging: str, folder: str) -> None:
    """Carries out an announced move, from the start or from wherever its writer was killed."""
    marker = os.path.join(staging, _COMPLETE)
    announced = os.stat(marker).st_mtime
    with open(marker, encoding="utf-8") as file:
        names = file.read().split("\n")
    for name in names:
        source, target = os.path.join(staging, _PAYLOAD, name), os.path.join(folder, name)
        if not os.path.exists(source):
            continue  # moved before the writer was killed
        if os.path.exists(target) and os.stat(target).st_mtime > announced:
            continue  # somebody has written a newer version since
        if not _move_at_once(source, target):
            os.rename(target, os.path.join(staging, _PREVIOUS))
            os.rename(source, target)
    _flush(folder)


def _move_at_once(source: str, target: str) -> bool:
    """Puts `source` in the place of `target` in one step; False if that needs two renames."""
    if not os.path.isdir(source):
        if os.path.isfile(target):
            os.chmod(source, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(source, target)
        return True
    if not os.path.exists(target):
        os.rename(source, target)
        return True
    if not os.path.isdir(target):
        raise NotADirectoryError(f"{target} is a file; it can't be replaced by a folder.")
    return _exchange(source, target)


def _exchange(first: str, second: str) -> bool:
    """Swaps two names in one step (Linux: renameat2 with RENAME_EXCHANGE), where possible."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    if renameat2 is None:
        return False
    at_cwd, rename_exchange = -100, 2
    result: int = renameat2(
        at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), rename_exchange
    )
    return result == 0


def _flush_tree(path: str) -> None:
    """Forces a file, or a folder with all it holds, to the disk."""
    if os.path.isdir(path):
        for entry in os.scandir(path):
            _flush_tree(entry.path)
    _flush(path)


def _flush(path: str) -> None:
    if fcntl is None:
        return  # Windows can't flush what is open for reading only
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not os.path.isdir(path):  # some file systems can't flush a folder; a file must be safe
            raise
    finally:
        os.close(descriptor)
