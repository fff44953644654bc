"""The words that processes exchange before TensorFlow starts: who listens at an address.

Every process listens on its own port and speaks first, one line:

    TFDIST 1 {"task": "worker 1", "cluster": "<hash>", "token": "<random>", "waiting": [...]}

Whoever connects reads that line and answers with its own. TensorFlow's gRPC server speaks first,
too (an HTTP/2 SETTINGS frame), so that one read tells the two, and anything else, apart.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from tfdist.cluster import Cluster
from tfdist.cluster.check import is_loopback, split_address

__all__ = ["REFUSED", "Answer", "Identity", "Listener", "bind_host", "open_socket", "probe"]

_GREETING = b"TFDIST 1 "
REFUSED = "refused (no process listens there yet)"
_LONGEST = 1 << 16  # bytes of a line
_TIMEOUT = 5.0  # seconds for one connection; a SYN that is lost once is sent again after 1 s


@dataclass(frozen=True)
class Identity:
    """Who a process is.

    Attributes:
        task: such as "worker 1".
        cluster: a hash of the cluster's roles and addresses.
        token: random, told apart from another process that was started as the same task.
        waiting: the tasks that it has not reached yet.
    """

    task: str
    cluster: str
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    waiting: tuple[str, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster) -> Identity:
        """This process's identity in the cluster."""
        jobs = json.dumps({role: list(addresses) for role, addresses in cluster.jobs.items()})
        return cls(cluster.task_name, hashlib.sha256(jobs.encode()).hexdigest()[:16])

    def to_line(self) -> bytes:
        """The line that is sent."""
        return _GREETING + json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Identity | None:
        """Reads a line; None when it is none of tfdist's."""
        if not line.startswith(_GREETING):
            return None
        try:
            content = json.loads(line[len(_GREETING) :])
            return cls(
                str(content["task"]),
                str(content["cluster"]),
                str(content["token"]),
                tuple(map(str, content["waiting"])),
            )
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Answer:
    """What was found at an address: an identity, a TensorFlow server, or a failure."""

    identity: Identity | None = None
    is_tensorflow: bool = False
    failure: str | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the host is there, and no process listens on the port."""
        return self.failure == REFUSED


def probe(address: str, me: Identity, timeout: float = _TIMEOUT) -> Answer:
    """Asks who listens at an address, and introduces this process to another tfdist process.

    Args:
        address: "host:port".
        me: this process.
        timeout: seconds for the connection and for the answer; looking up the name may take longer.

    Returns:
        The answer; it never raises for what the network does.
    """
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            line = _read_line(connection)
            identity = Identity.from_line(line)
            if identity is not None:
                connection.sendall(me.to_line())
                # The other side hangs up once it has taken note of the introduction.
                while connection.recv(1024):
                    pass
                return Answer(identity=identity)
            # An HTTP/2 frame: three bytes of length, then the type; 4 is SETTINGS.
            if len(line) >= 9 and line[3] == 4 and line[:1] == b"\0":
                return Answer(is_tensorflow=True)
            return Answer(failure="something that is neither tfdist nor TensorFlow answers there")
    except socket.gaierror as error:
        return Answer(failure=f"no such host ({error.strerror})")
    except TimeoutError:
        return Answer(failure="timed out (a firewall, or a host that is down)")
    except ConnectionRefusedError:
        return Answer(failure=REFUSED)
    except ConnectionResetError:
        return Answer(failure="the connection was reset")
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA can't encode
        return Answer(failure=f"unreachable ({getattr(error, 'strerror', None) or error})")


def _read_line(connection: socket.socket) -> bytes:
    """Reads up to a newline, the end, or the length of a foreign protocol's first bytes."""
    data = b""
    while b"\n" not in data and len(data) < _LONGEST:
        part = connection.recv(4096)
        if not part:
            break
        data += part
        if len(data) >= len(_GREETING) and not data.startswith(_GREETING):
            break
    return data


def bind_host(cluster: Cluster) -> str:
    """The address to listen on: the loopback one for a cluster of one machine, else all."""
    host = split_address(cluster.address or "")[0]
    if not is_loopback(host):
        return ""
    return host if host.startswith("127.") or host == "::1" else "127.0.0.1"


def open_socket(host: str, port: int) -> socket.socket:
    """Binds a TCP socket, sharing the port with the launcher that holds it for this process.

    Args:
        host: an address of this machine; "" is all of them, IPv6 too where there is any, as in
            TensorFlow's server.
        port: the port.

    Raises:
        OSError: the port is in use, or may not be bound.
    """
    if not host and socket.has_dualstack_ipv6():
        try:
            return _bind(socket.AF_INET6, "::", port)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return _bind(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)


def _bind(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    result = socket.socket(family, socket.SOCK_STREAM)
    try:
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            result.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        result.bind((host, port))
    except OSError:
        result.close()
        raise
    return result


class Listener:
    """Answers on this process's own port until it is closed.

    Args:
        bound: a bound socket; the listener owns it from now on.
        identity: returns this process's identity as it is now.
        on_visitor: called, in a thread of the listener, with the identity of each tfdist process
            that introduces itself.
    """

    def __init__(
        self,
        bound: socket.socket,
        identity: Callable[[], Identity],
        on_visitor: Callable[[Identity], Any],
    ) -> None:
        self._socket = bound
        self._identity = identity
        self._on_visitor = on_visitor
        # A closed socket does not wake a thread that waits in accept(); this pipe does.
        self._wake, self._waker = os.pipe()
        bound.listen(128)
        bound.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="tfdist-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening and frees the port; returns when it is free."""
        os.write(self._waker, b"x")
        self._thread.join()
        os.close(self._waker)
        os.close(self._wake)

    def _serve(self) -> None:
        with self._socket, selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            stopping = False
            while not stopping:
                stopping = any(key.fileobj == self._wake for key, _ in selector.select())
                self._answer_waiting()

    def _answer_waiting(self) -> None:
        """Answers everyone in the queue; closing the socket resets the connections left there."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # nobody else waits, or the visitor has gone
                return
            threading.Thread(
                target=self._answer, args=(connection,), name="tfdist-visitor", daemon=True
            ).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_TIMEOUT)
                connection.sendall(self._identity().to_line())
                visitor = Identity.from_line(_read_line(connection))
                if visitor is not None:
                    self._on_visitor(visitor)
        except OSError:
            return  # The visitor has gone; it will come again.
