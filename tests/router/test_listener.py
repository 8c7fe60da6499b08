"""The listening socket and what accepted connections inherit from it."""

import socket

import pytest

from segue.cluster.errors import ConfigurationError
from segue.router.listener import open_listener


def test_accepted_connections_do_not_delay_small_writes() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
                assert client.getpeername() == listener.getsockname()


def test_a_taken_port_is_told_by_name() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
            open_listener("127.0.0.1", port)
