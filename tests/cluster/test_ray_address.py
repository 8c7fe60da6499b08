"""Whether a Ray cluster can be joined is told within seconds."""

import socket

import pytest

from segue.cluster.errors import ConfigurationError
from segue.cluster.ray_address import check_ray_address


def test_auto_and_an_open_port_pass() -> None:
    check_ray_address("auto")
    with socket.create_server(("127.0.0.1", 0)) as open_port:
        check_ray_address(f"127.0.0.1:{open_port.getsockname()[1]}")


def test_a_closed_port_is_told_with_its_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConfigurationError, match=f"no Ray cluster at 127.0.0.1:{port}: .*refused"):
        check_ray_address(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    "address", ["", "head", ":6379", "head:", "head:ray", "head:0", "head:70000", "ray://head:1"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="auto or host:port"):
        check_ray_address(address)
