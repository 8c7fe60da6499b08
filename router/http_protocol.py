"""HTTP/1.1 on an accepted connection, bounded where the server library is not.

The head of a request has a size and a deadline, and so has what a client still sends of a body
after it was answered. Everything later is the application's to bound.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 2**10
_REFUSAL = b"the request's head is too large"
_REFUSED = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_REFUSAL), _REFUSAL)
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """A head that is whole within one read may be larger; ExchangeLayer refuses it in good form."""

    head_seconds = 30.0  # from the connection, or the first byte of a request, to its head's end
    drain_seconds = 10.0  # for the rest of a body that nobody reads any more

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience: asyncio.TimerHandle | None = None
        self._num_heads = 0
        self._in_head = False
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._hurry(self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        unfinished = self._num_heads if self._in_head else None
        super().data_received(data)
        if self._in_head and unfinished == self._num_heads:  # all of `data` was of that head
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(_REFUSED)
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_heads += 1
        self._in_head, self._head_bytes = True, 0
        self._hurry(self.head_seconds)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._relax()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._in_head:
            self._relax()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._hurry(self.drain_seconds)

    def _hurry(self, seconds: float) -> None:
        self._relax()
        self._patience = self.loop.call_later(seconds, self._give_up)

    def _relax(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self._patience = None
        if not self.transport.is_closing():
            self.transport.close()
