"""What the machine is and has: cores, memory, network, limits, folders."""

from __future__ import annotations

import os
import platform
import re
import resource
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.doctor.commands import each_within
from tfdist.doctor.facts import Disk, HostFacts, Interface, Limits
from tfdist.launcher.machine import detect

__all__ = [
    "addresses_of",
    "disks",
    "host",
    "infiniband",
    "interfaces",
    "limits",
    "shared_memory",
    "tpu_chips",
]

_NOWHERE = "?"  # the working directory that has been removed

# What decides which kernels TensorFlow can use.
_FLAGS = ("avx", "avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")


def host(environ: Mapping[str, str]) -> HostFacts:
    """The machine itself."""
    import psutil

    memory = psutil.virtual_memory()
    limit = _memory_limit(Path("/sys/fs/cgroup"))
    name = socket.gethostname()
    processor, flags = _processor(_read("/proc/cpuinfo"))
    return HostFacts(
        name=name,
        addresses=each_within(5, addresses_of, [name]).get(name, ()),
        system=f"{_distribution()}, {platform.system()} {platform.release()}, {platform.machine()}",
        container=_in_container(environ),
        cores=os.cpu_count() or 1,
        allowed_cores=detect(environ).cores,
        numa_nodes=max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))),
        cpu=processor,
        cpu_flags=flags,
        memory=min(memory.total, limit or memory.total),
        memory_free=min(memory.available, limit or memory.available),
    )


def addresses_of(name: str) -> tuple[str, ...]:
    """The addresses that a host name resolves to; none when it doesn't."""
    try:
        found = socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(sorted({str(item[4][0]) for item in found}))


def interfaces() -> tuple[Interface, ...]:
    """The network interfaces that are up, with their addresses."""
    import psutil

    states = psutil.net_if_stats()
    found = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        state = states.get(name)
        if state is not None and state.isup:
            texts = [
                item.address.partition("%")[0]
                for item in addresses
                if item.family in (socket.AF_INET, socket.AF_INET6)
            ]
            found.append(Interface(name, tuple(texts), max(0, state.speed)))
    return tuple(found)


def infiniband(folder: Path = Path("/sys/class/infiniband")) -> tuple[str, ...]:
    """The InfiniBand and RoCE devices."""
    return tuple(sorted(path.name for path in folder.glob("*")))


def tpu_chips(patterns: Sequence[str] = ("accel[0-9]*", "vfio/[0-9]*")) -> int:
    """How many TPU chips this machine's device files name."""
    return sum(len(list(Path("/dev").glob(pattern))) for pattern in patterns)


def limits() -> Limits:
    """The limits of this process."""

    def soft(kind: int) -> int:
        value = resource.getrlimit(kind)[0]
        return -1 if value == resource.RLIM_INFINITY else value

    names = ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_MEMLOCK")  # macOS has them, too
    return Limits(*(soft(getattr(resource, name)) for name in names))


def shared_memory(folder: Path = Path("/dev/shm")) -> tuple[int, int] | None:
    """Size and free bytes of the shared memory; None where there is none."""
    try:
        state = os.statvfs(folder)
    except OSError:
        return None
    return state.f_frsize * state.f_blocks, state.f_frsize * state.f_bavail


def disks(environ: Mapping[str, str], timeout: float = 5.0) -> tuple[Disk, ...]:
    """The folders that jobs write to; one that does not answer has that as its problem.

    Args:
        environ: the environment, which names some of them.
        timeout: seconds for all of them: a network file system may be gone.
    """
    home = environ.get("HOME") or os.path.expanduser("~")
    folders = {
        "working directory": _working_directory(),
        "TMPDIR": environ.get("TMPDIR") or tempfile.gettempdir(),
        "TFDS_DATA_DIR": environ.get("TFDS_DATA_DIR")
        or environ.get("TFDIST_DATA_DIR")
        or os.path.join(home, "tensorflow_datasets"),
    }
    if environ.get("TFDIST_CHECKPOINT_DIR"):
        folders["TFDIST_CHECKPOINT_DIR"] = environ["TFDIST_CHECKPOINT_DIR"]
    states = each_within(timeout, _disk, list(folders.values()))
    silent = (-1, f"it did not answer within {timeout:.0f} s", 0.0)
    return tuple(
        Disk(purpose, path, *states.get(path, silent)) for purpose, path in folders.items()
    )


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return _NOWHERE


def _disk(path: str) -> tuple[int, str, float]:
    """Free bytes, why nothing can be written, and how far its clock is ahead."""
    if "://" in path:  # gs://, s3://: not this machine's
        return -1, "", 0.0
    there = Path(path).expanduser()
    if path == _NOWHERE:
        return -1, "it has been removed", 0.0
    while not there.exists() and there != there.parent:
        there = there.parent  # It is made when it is needed.
    if not there.is_dir():
        return -1, f"{there} is not a folder", 0.0
    try:
        state = os.statvfs(there)
        free = state.f_frsize * state.f_bavail
        if state.f_files and not state.f_favail:
            return free, "no file can be made there any more (out of inodes)", 0.0
        before = time.time()
        with tempfile.NamedTemporaryFile(dir=there, prefix=".tfdist-doctor-") as file:
            file.write(b"x" * 4096)
            file.flush()
            written = os.stat(file.name).st_mtime
        after = time.time()
    except OSError as error:
        return -1, f"nothing can be written there: {error.strerror}", 0.0
    # A file's time is that of the kernel's last tick, some milliseconds ago.
    late = max(0.0, written - after) or min(0.0, written - before)
    return free, "", round(late, 1)


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except (OSError, AttributeError):
        return platform.platform(terse=True)


def _in_container(environ: Mapping[str, str]) -> bool:
    marks = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
    return "KUBERNETES_SERVICE_HOST" in environ or any(os.path.exists(mark) for mark in marks)


def _processor(cpuinfo: str) -> tuple[str, tuple[str, ...]]:
    name = re.search(r"^model name\s*: (.+)$", cpuinfo, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.+)$", cpuinfo, re.MULTILINE)
    known: Sequence[str] = flags[1].split() if flags else ()
    return name[1].strip() if name else platform.processor(), tuple(f for f in _FLAGS if f in known)


def _memory_limit(cgroup: Path) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(str(cgroup / name)).strip()
        if text.isdecimal() and int(text) < 2**60:  # version 1 says "none" by a huge number
            return int(text)
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
