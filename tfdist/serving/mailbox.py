"""Messages to a TensorFlow server at its own port, and its answers.

The messages are elements of a queue that lives in the server's runtime. The sender needs no
connection of TensorFlow's eager runtime, only the address: so it works before the cluster is
connected, after that has failed, and to a worker that was just started again.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.cluster import Task

__all__ = ["Mailbox", "Message", "Misplaced", "NoAnswer", "Undelivered", "ask"]

Message = Mapping[str, Any]

_INBOX = "tfdist_inbox"
_CAPACITY = 1000


class Undelivered(Exception):
    """The message did not reach its server."""


class NoAnswer(Undelivered):
    """The server took the message, and nobody there reads it."""


class Misplaced(Undelivered):
    """The server at the address is another task's; the error's text is that task's name."""


def ask(task: Task, message: Message, timeout: float, is_last: bool = False) -> Message:
    """Sends a message to a task's server and returns what it answers.

    Args:
        task: a worker or ps. Something should listen at its address: TensorFlow takes long to give up
            on an address where nobody does.
        message: JSON-serialisable.
        timeout: seconds.
        is_last: whether this process ends after it, and the server too, perhaps.

    Raises:
        Undelivered: the server can't be reached.
        Misplaced: it is another task's.
        NoAnswer: it runs, and no mailbox is open there.
    """
    box: list[Any] = []

    def run() -> None:
        try:
            box.append(_ask(task, message, timeout, is_last))
        except Exception as error:
            box.append(error)

    # In a thread: TensorFlow's own deadlines don't hold while a session is opened or closed.
    thread = threading.Thread(target=run, name="tfdist-ask", daemon=True)
    thread.start()
    thread.join(timeout + 1.0)
    result = box[0] if box else Undelivered("timed out")
    if isinstance(result, Exception):
        raise result
    return result


def _ask(task: Task, message: Message, timeout: float, is_last: bool) -> Message:
    import tensorflow as tf

    until = time.monotonic() + timeout
    answers = f"tfdist_answers_{secrets.token_hex(8)}"
    graph = tf.Graph()
    with graph.as_default(), tf.device(_device(task)):
        send = _queue(_INBOX).enqueue(json.dumps({**message, "answers": answers}))
        receive = _queue(answers).dequeue()
    session = tf.compat.v1.Session(
        f"grpc://{task.address}", graph=graph, config=_session_config(timeout)
    )
    try:
        names = [device.name for device in session.list_devices()]
        if not any(_is_of(task, name) for name in names):
            raise Misplaced(_owner(names))
        session.run(send)
        left = max(int(1000 * (until - time.monotonic())), 1)
        try:
            text = session.run(receive, options=tf.compat.v1.RunOptions(timeout_in_ms=left))
        except tf.errors.DeadlineExceededError as error:
            raise NoAnswer(_first_line(error)) from None
        return json.loads(text)
    except tf.errors.OpError as error:
        raise Undelivered(_first_line(error)) from None
    finally:
        if is_last:
            _leak(session)
        else:
            with contextlib.suppress(tf.errors.OpError):
                session.close()


class Mailbox:
    """The server's side: calls a function for each message, in a thread.

    Args:
        task: the server's own.
        target: how its own process reaches the server, `tf.distribute.Server.target`.
        handle: gets a message, returns the answer.
    """

    def __init__(self, task: Task, target: str, handle: Callable[[Message], Message]) -> None:
        import tensorflow as tf

        self._handle = handle
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device(_device(task)):
            queue = _queue(_INBOX)
            self._receive = queue.dequeue()
            self._text = tf.compat.v1.placeholder(tf.string, ())
            self._stop = queue.enqueue("")
        self._task = task
        self._session = tf.compat.v1.Session(
            target, graph=self._graph, config=_session_config(None)
        )
        self._thread = threading.Thread(target=self._serve, name="tfdist-mailbox", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 2.0) -> None:
        """Stops reading; a process that ends in the middle of TensorFlow may crash."""
        import tensorflow as tf

        with contextlib.suppress(tf.errors.OpError):
            self._session.run(self._stop)
        self._thread.join(timeout)

    def _serve(self) -> None:
        import tensorflow as tf

        while True:
            try:
                text = self._session.run(self._receive)
            except (tf.errors.OpError, RuntimeError):
                return
            if not text:
                return
            message = json.loads(text)
            self._answer(message["answers"], self._handle(message))

    def _answer(self, name: str, answer: Message) -> None:
        import tensorflow as tf

        with self._graph.as_default(), tf.device(_device(self._task)):
            send = _queue(name).enqueue(json.dumps(answer))
        with contextlib.suppress(tf.errors.OpError):  # whoever asked has given up
            self._session.run(send)


def _queue(name: str) -> Any:
    import tensorflow as tf

    return tf.queue.FIFOQueue(_CAPACITY, tf.string, shapes=[()], shared_name=name)


def _session_config(timeout: float | None) -> Any:
    """The session talks to one server alone, which would otherwise wait for the whole cluster."""
    import tensorflow as tf

    # A server's own devices are always there; of the others' none has this job.
    config = tf.compat.v1.ConfigProto(device_filters=["/job:none"])
    if timeout is not None:
        config.operation_timeout_in_ms = int(1000 * timeout)
    return config


def _leak(session: Any) -> None:
    """Keeps a session from being closed, by anybody.

    To close one whose server is about to go takes seconds, and a thread that comes back from
    TensorFlow while Python shuts down crashes the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


def _device(task: Task) -> str:
    return f"/job:{task.type}/task:{task.index}/device:CPU:0"


def _is_of(task: Task, device: str) -> bool:
    return f"/job:{task.type}/" in device and f"/task:{task.index}/" in device


def _owner(devices: list[str]) -> str:
    """Such as "ps 0", from "/job:ps/replica:0/task:0/device:CPU:0"."""
    parts = dict(part.split(":", 1) for part in devices[0].split("/") if ":" in part)
    return f"{parts.get('job')} {parts.get('task')}"


def _first_line(error: Any) -> str:
    lines = [line for line in error.message.splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
