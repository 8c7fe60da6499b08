"""The address of a Ray cluster to join: what may be given, and whether anybody is there."""

import socket

from segue.cluster.errors import ConfigurationError

AUTO = "auto"  # the cluster of this machine
CONNECT_S = 5.0


def check_ray_address(address: str) -> None:
    """Raises ConfigurationError within seconds where Ray itself would wait for minutes."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigurationError(f"the address of a Ray cluster is auto or host:port: '{address}'")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"no Ray cluster at {address}: {reason}") from error
