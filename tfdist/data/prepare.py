"""Prepares data sets of TensorFlow Datasets: once, whole or not at all, and never without end.

    python -m tfdist.data.prepare cifar10 --data_dir=DIR

does the same beforehand, on a machine with a network, for one that has none.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from typing import Any

from tfdist.data.locks import locked
from tfdist.errors import DataError, TfdistError, explain

__all__ = ["ensure_prepared", "main"]

logger = logging.getLogger(__name__)

PREPARE_TIMEOUT = 3600.0
PROBE_TIMEOUT = 5.0
_PORTS = {"https": 443, "http": 80, "ftp": 21}


def ensure_prepared(builder: Any, *, timeout: float = PREPARE_TIMEOUT) -> None:
    """Prepares a builder's data in its folder unless that is done already.

    Of several processes one prepares while the others wait. TensorFlow Datasets writes to a
    folder of another name and renames it at the end, so a process that is killed leaves nothing
    that could be taken for the data.

    Args:
        builder: a builder of TensorFlow Datasets.
        timeout: for waiting for another process, and for a download, in seconds.

    Raises:
        DataError: there is no network, no space, no permission, or no end within the timeout.
    """
    if _is_prepared(builder):
        return
    root = pathlib.Path(os.fspath(builder.data_dir_root))
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            explain(
                f"Can't create the folder for data sets, {root}",
                received=error.strerror,
                fix="Set data_dir (or TFDS_DATA_DIR) to a folder that can be written",
            )
        ) from None
    name = builder.info.full_name
    lock = root / f".{name.replace('/', '-')}.lock"
    with locked(lock, timeout=timeout, purpose=f"preparing {name}") as handle:
        if _is_prepared(builder):
            return
        logger.info("Preparing %s in %s", name, root)
        if _downloads(builder):
            _check_reachable(builder, root)
            _prepare_in_child(builder, root, handle, timeout)
        else:
            _prepare_here(builder, root)
    if not _is_prepared(builder):
        raise DataError(
            explain(
                f"The folder of {name} is incomplete",
                received=builder.data_dir,
                fix="Delete that folder; it is prepared again at the next start",
            )
        )


def _is_prepared(builder: Any) -> bool:
    # Asking about a folder that isn't there makes TensorFlow Datasets warn.
    return bool(builder.data_path.exists() and builder.is_prepared())


def _downloads(builder: Any) -> bool:
    """Whether the builder is one of TensorFlow Datasets' own, which nearly all download.

    A builder from elsewhere is known to this process alone, so it has to be prepared in it.
    """
    return type(builder).__module__.startswith("tensorflow_datasets.")


def _prepare_here(builder: Any, root: pathlib.Path) -> None:
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    try:
        # It prints that it downloads, even where there is nothing to download.
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare()
    except TfdistError:
        raise
    except Exception as error:
        if _is_prepared(builder):  # Another machine was faster on a shared folder.
            return
        raise _failed(builder, root, f"{type(error).__name__}: {error}") from error


def _prepare_in_child(builder: Any, root: pathlib.Path, lock: int, timeout: float) -> None:
    """Prepares in a process of its own, which can be ended: a download can block for ever."""
    command = [sys.executable, "-m", "tfdist.data.prepare", _spec(builder)]
    command += [f"--data_dir={root}", "--unlocked"]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if key != "TF_CONFIG"},
        )
        try:
            code: int | None = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if code == 0:
            return
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    reason = f"no end within {timeout:g} s" if code is None else (lines or ["no output"])[-1]
    raise _failed(builder, root, reason)


def _spec(builder: Any) -> str:
    config = builder.builder_config_name
    return builder.name + (f"/{config}" if config else "") + f":{builder.version}"


def _failed(builder: Any, root: pathlib.Path, reason: str) -> DataError:
    fix = f"Correct its builder, {type(builder).__module__}"
    if _downloads(builder):
        elsewhere = f"python -m tfdist.data.prepare {_spec(builder)} --data_dir=DIR"
        fix = (
            f"Prepare it where there is a network with `{elsewhere}`, copy DIR/{builder.name} to "
            f"{root}, or use dataset='digits', which needs none"
        )
    return DataError(
        explain(
            f"The data set {builder.info.full_name!r} is not in {root} and could not be prepared",
            received=" ".join(reason.split())[:500],
            fix=fix,
        )
    )


def _check_reachable(builder: Any, root: pathlib.Path) -> None:
    """Finds out within seconds whether the servers to download from can be reached.

    Raises:
        DataError: none of them answers.
    """
    servers = _servers(builder)
    if not servers:
        return
    problems: dict[str, str] = {}
    reached = threading.Event()
    finished = threading.Semaphore(0)

    def probe(host: str, port: int) -> None:
        try:
            socket.create_connection((host, port), timeout=PROBE_TIMEOUT).close()
            reached.set()
        except OSError as error:
            problems[host] = error.strerror or str(error)
        finished.release()

    # Looking up a name has no timeout of its own, hence threads that are left alone if need be.
    for host, port in servers:
        threading.Thread(target=probe, args=(host, port), daemon=True).start()
    deadline = time.monotonic() + PROBE_TIMEOUT + 1
    for _ in servers:
        if not finished.acquire(timeout=max(deadline - time.monotonic(), 0.01)) or reached.is_set():
            break
    if not reached.is_set():
        listing = ", ".join(f"{host}: {problems.get(host, 'no answer')}" for host, _ in servers)
        raise _failed(builder, root, f"it has to be downloaded and there is no network ({listing})")


def _servers(builder: Any) -> list[tuple[str, int]]:
    """Hosts and ports that the builder downloads from, or the proxies in between."""
    found = set()
    proxies = urllib.request.getproxies()
    for url in builder.url_infos or ():
        parts = urllib.parse.urlsplit(url)
        if proxy := proxies.get(parts.scheme):
            parts = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
        if parts.hostname:
            found.add((parts.hostname, parts.port or _PORTS.get(parts.scheme, 443)))
    return sorted(found)[:8]


def main(argv: list[str] | None = None) -> int:
    """Prepares one data set; the program `python -m tfdist.data.prepare`."""
    parser = argparse.ArgumentParser(prog="python -m tfdist.data.prepare", description=__doc__)
    parser.add_argument("dataset", help="name[/config][:version] in TensorFlow Datasets")
    parser.add_argument(
        "--data_dir", help="where to; default TFDS_DATA_DIR or ~/tensorflow_datasets"
    )
    parser.add_argument("--timeout", type=float, default=PREPARE_TIMEOUT, help="in seconds")
    parser.add_argument("--unlocked", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    from tfdist.data import tfds_source

    try:
        builder = tfds_source.find_builder(options.dataset, options.data_dir)
        if options.unlocked:
            _prepare_here(builder, pathlib.Path(os.fspath(builder.data_dir_root)))
        else:
            ensure_prepared(builder, timeout=options.timeout)
    except TfdistError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{builder.info.full_name} is in {builder.data_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
