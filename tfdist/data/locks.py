"""A lock between processes that ends with its holder, however that dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pathlib
import tempfile
import time
from collections.abc import Iterator

from tfdist.errors import DataError, explain

__all__ = ["locked"]

_POLL = 0.1


@contextlib.contextmanager
def locked(path: pathlib.Path, *, timeout: float, purpose: str) -> Iterator[int]:
    """Holds an exclusive lock on a file.

    The lock belongs to the open file, so the system drops it when the last process that has it
    open ends. The file stays: deleting it would let two processes lock two files of one name.

    Args:
        path: the lock's file; its folder exists.
        timeout: how long to wait for the holder, in seconds.
        purpose: what the holder does, for the message.

    Yields:
        The file's descriptor. A child that inherits it keeps the lock alive.

    Raises:
        DataError: the folder can't be written, or the lock was not free in time.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise DataError(
            explain(
                f"Can't write to {path.parent}",
                received=error.strerror,
                fix="Set data_dir (or TFDS_DATA_DIR) to a folder that can be written",
            )
        ) from None
    try:
        handle = _acquire(handle, path, timeout, purpose)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield handle
    finally:
        os.close(handle)


def _acquire(handle: int, path: pathlib.Path, timeout: float, purpose: str) -> int:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                # A network file system without locks: at least the workers of this machine
                # take turns.
                os.close(handle)
                handle = _local_stand_in(path)
                continue
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                raise
        if time.monotonic() > deadline:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            raise DataError(
                explain(
                    f"Another process did not finish {purpose} within {timeout:g} s",
                    received=f"{path} held by process {holder}",
                    fix="Wait for that process or end it, then start again",
                )
            )
        time.sleep(_POLL)


def _local_stand_in(path: pathlib.Path) -> int:
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    stand_in = pathlib.Path(tempfile.gettempdir(), f"tfdist-{os.getuid()}-{name}.lock")
    return os.open(stand_in, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
