"""The program of a persistent test process: it is fed cases one after another over a pipe.

Started by `support.server.CaseServer`. A case is the name of a function, "module:function", called with the
object that the server's set-up function returned and with keyword arguments; the pickled answer goes back.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def load(name: str) -> Callable[..., Any]:
    """Returns the function called "module:function"."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _answer(run: Callable[[], Any]) -> bytes:
    """Runs a case and returns its pickled outcome; any exception is an outcome too."""
    try:
        return pickle.dumps(("ok", run()))
    except BaseException as error:  # the server decides what to do with it
        text = traceback.format_exc()
        return pickle.dumps(("error", (type(error).__name__, str(error), text)))


def _watch_parent(parent: int) -> None:
    """Ends this process when the test run that started it is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Answers cases until the pipe closes."""
    descriptor, parent, setup, *arguments = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    threading.Thread(target=_watch_parent, args=(int(parent),), daemon=True).start()
    pipe = Connection(int(descriptor))
    state: Any = None

    def start() -> list[Any]:
        nonlocal state
        state = load(setup)(*arguments)
        return []

    pipe.send_bytes(_answer(start))
    while True:
        try:
            name, kwargs = pipe.recv()
        except EOFError:
            break
        pipe.send_bytes(_answer(lambda: load(name)(state, **kwargs)))  # noqa: B023
        sys.stdout.flush()
        sys.stderr.flush()
    # TensorFlow's shutdown barrier between workers would wait for peers that are already gone.
    os._exit(0)


if __name__ == "__main__":
    main()
