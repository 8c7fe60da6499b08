"""HTTP/1.1 on an accepted connection, bounded and answered where the server library is not.

The head of a request has a size, a number of headers and a deadline, and so has what a client
still sends of a body after it was answered. Everything later is the application's to bound. Other
protocols are offered in vain (no_upgrade.py), and a client that has ended its side of the
connection behind its request is answered (half_close.py).
"""

import asyncio
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from segue.router.error_body import error_body, kind_of
from segue.router.half_close import HalfClose
from segue.router.no_upgrade import head_without_upgrade

MAX_HEAD_BYTES = 64 * 2**10
MAX_HEADERS = 256
MAX_DISCARDED_BYTES = 4 * MAX_HEAD_BYTES
_REASONS = {
    400: b"Bad Request",
    405: b"Method Not Allowed",
    431: b"Request Header Fields Too Large",
}


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
        self._upgrading = False  # the head asked for another protocol: it is read once more
        self._half_close: HalfClose | None = None
        self._refused = False
        self._discarded_bytes = 0  # that came behind a refusal

    # -- the connection ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._hurry(self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        if self._half_close is not None:
            self._half_close.stop()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. True: the connection stays, since it may still read."""
        cycle = self.cycle
        whole = (
            not self._refused and cycle is not None and not self._in_head and not cycle.more_body
        )
        if not whole or (cycle.response_complete and not self.pipeline):
            return False
        cycle.keep_alive = False  # it is the last one of this connection
        self._half_close = HalfClose(self.transport, self._awaits_an_answer)
        return True

    def _awaits_an_answer(self) -> bool:
        """Whether a part of an answer that says nothing may be written now."""
        cycle = self.cycle
        later = cycle.response_started or cycle.response_complete or bool(self.pipeline)
        return not later and cycle.scope["http_version"] == "1.1"

    # -- bytes -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        unfinished = self._num_heads if self._in_head else None
        rest = data
        while rest and not self._is_over():
            rest = self._feed(rest)
        if self._refused:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > MAX_DISCARDED_BYTES:
                self.transport.close()
            return
        if self._in_head and unfinished == self._num_heads:  # all of `data` was of that head
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes")

    def _feed(self, data: bytes) -> bytes:
        """Parse it; returns what another parser is to read."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            (offset,) = upgrade.args
            if self._upgrading:
                self._read_head_again()
            return data[offset:]
        except httptools.HttpParserError:
            self._refuse(400, "this is no valid HTTP/1.1 request")
        return b""

    def _read_head_again(self) -> None:
        """The parser would take what follows for another protocol: a new one gets the same head
        without the offer, and reads the body as of any other request."""
        head = head_without_upgrade(
            self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers
        )
        self._upgrading = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(head)

    # -- what the parser finds ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_heads += 1
        self._in_head, self._head_bytes = True, 0
        self._hurry(self.head_seconds)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) < MAX_HEADERS:
            super().on_header(name, value)
        else:
            self._refuse(431, f"there are more than {MAX_HEADERS} headers")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._relax()
        if self._is_over():
            return
        if self.parser.get_method() == b"CONNECT":
            self._refuse(405, "CONNECT is not allowed: this is no proxy")
        elif self.parser.should_upgrade():
            self._upgrading = True
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_aside():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_aside():
            return
        if not self._in_head:
            self._relax()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._hurry(self.drain_seconds)

    def _is_aside(self) -> bool:
        """What is parsed belongs to no request that was begun."""
        return self._upgrading or self._is_over()

    def _is_over(self) -> bool:
        return self._refused or self.transport.is_closing()

    # -- refusals and deadlines --------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answer what the application never sees, as it would, and end the connection.

        What the client still sends is taken in for a while: closing upon it would reset the
        connection, and the client might never see the answer.
        """
        if self._is_over():
            return
        self._refused = True
        body = orjson.dumps(error_body(status, kind_of(status), message))
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n" % (status, _REASONS[status])
        self.transport.write(
            head + b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._hurry(self.drain_seconds)
        else:
            self.transport.close()

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
