"""Opens the socket the gateway listens on, so that port 0 is known before anyone is told."""

import socket

from segue.cluster.errors import ConfigurationError

_BACKLOG = 2048
_UNREAD_MILLISECONDS = 60_000


def open_listener(host: str, port: int) -> socket.socket:
    """Raises ConfigurationError if the address can not be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"gateway: can not listen on {host}:{port}: {reason}") from error
    # Accepted sockets inherit these. asyncio sets TCP_NODELAY only on sockets it opened itself;
    # without it each answer waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # The kernel drops a client that vanished, or that reads nothing for this long.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MILLISECONDS)
    return listener
