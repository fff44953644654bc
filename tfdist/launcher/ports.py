"""Free ports that stay free until the workers use them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def held_ports(count: int) -> Iterator[tuple[int, ...]]:
    """Holds `count` free TCP ports of this host, for as long as the context lasts.

    Each is bound, never listening, so that nobody else gets it: the kernel gives a bound port to no
    socket that asks for any. A worker, which asks for it by number and with SO_REUSEADDR as gRPC
    does, can still bind it and listen, and every connection goes to the listener. So they can stay
    held while the job runs. The wildcard address is held because gRPC's servers bind that.

    Yields:
        The numbers of the ports.
    """
    with ExitStack() as stack:
        numbers = []
        for _ in range(count):
            held = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(("", 0))
            numbers.append(held.getsockname()[1])
        yield tuple(numbers)
