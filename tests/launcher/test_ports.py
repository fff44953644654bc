import socket

import pytest

from tfdist.launcher.ports import held_ports


def test_ports_are_distinct_also_between_jobs():
    with held_ports(100) as mine, held_ports(100) as yours:
        assert len({*mine, *yours}) == 200


@pytest.mark.parametrize("reuse", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_a_worker_listens_on_a_held_port_and_gets_every_connection(reuse):
    with held_ports(1) as (port,), socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, reuse, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        listener.settimeout(5)
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                listener.accept()[0].close()


def test_a_stranger_does_not_get_a_held_port():
    with (
        held_ports(1) as (port,),
        socket.socket() as stranger,
        pytest.raises(OSError, match="in use"),
    ):
        stranger.bind(("127.0.0.1", port))


def test_nobody_answers_on_a_held_port():
    with held_ports(1) as (port,), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_ports_are_free_afterwards():
    with held_ports(1) as (port,):
        pass
    with socket.socket() as socket_:
        socket_.bind(("127.0.0.1", port))
