"""One HTTP exchange as the gateway remembers it: names, instants and how it ended."""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from starlette.types import Scope

_KEY = "segue.exchange"
CLIENT_CLOSED_REQUEST = 499


@dataclass(slots=True, eq=False)
class Exchange:
    """Made by the outermost middleware; the layers below it add what they learn.

    `status` is the outcome that is counted: of a stream that broke after its 200 it is the
    status of the error. What `exits` holds is closed when the exchange ends, however it ends.
    """

    request_id: str
    endpoint: str
    id_from_client: bool = False
    tenant: bytes | None = field(default=None, repr=False)  # whose API key it has; see cache_salt
    began: float = field(default_factory=time.monotonic)
    status: int | None = None
    error_type: str | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    headers: dict[str, str] = field(default_factory=dict)  # more of them for the answer
    exits: AsyncExitStack = field(default_factory=AsyncExitStack)

    def fail(self, status: int, error_type: str | None = None) -> None:
        """Note a failure; the first one noted is the cause and stays."""
        if self.error_type is None:
            self.status, self.error_type = status, error_type or error_type_of(status)


def error_type_of(status: int) -> str:
    """The closed set of outcomes that metrics use as a label."""
    known = {401: "auth", 403: "auth", 404: "not_found", 429: "overload", 499: "cancelled"}
    known |= {408: "timeout", 503: "unavailable", 504: "timeout"}
    if status in known:
        return known[status]
    if status < 400:
        return ""
    return "validation" if status < 500 else "internal"


def attach(scope: Scope, exchange: Exchange) -> None:
    scope[_KEY] = exchange


def exchange_of(scope: Scope) -> Exchange:
    exchange: Exchange = scope[_KEY]
    return exchange
