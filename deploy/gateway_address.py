"""Where client commands find the gateway: an option, the environment, or what runs here."""

from typing import Annotated

import typer

from segue.cluster.config.environment import cache_folder, url_from_environment
from segue.cluster.errors import ConfigurationError
from segue.deploy.running_servers import newest_server

DEFAULT_URL = "http://127.0.0.1:8000"

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        "--base-url",
        help="the gateway: a URL, host:port, or a port of this machine; default: what SEGUE_URL "
        "holds, else the `segue serve` started last here",
    ),
]
PortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help="the gateway is on this machine, at this port")
]


def chosen_url(url: str | None, port: int | None = None) -> str:
    """Raises ConfigurationError if both are given."""
    if url is not None and port is not None:
        raise ConfigurationError("give --url or --port, not both")
    if port is not None:
        return whole_url(str(port))
    given = url or url_from_environment()
    return whole_url(given) if given else newest_server(cache_folder()) or DEFAULT_URL


def whole_url(text: str) -> str:
    """`8123`, `:8123`, `host:8123` and `http://host:8123` all name a gateway."""
    if "://" in text:
        return text
    host, _, port = text.rpartition(":")
    return f"http://{host or '127.0.0.1'}:{port}" if port.isdigit() else f"http://{text}"
