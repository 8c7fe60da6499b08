"""Tells a client that only sends no more from one that is gone: both look the same at first.

A client may end its side of the connection behind its request and still read the answer. One that
closed the connection resets it when it gets something, so a request that has no answer yet is
given an interim response, which says nothing (RFC 9110, 15.2): a client that reads skips it. An
answer that has begun needs no such question: its own next parts ask it.
"""

import asyncio
from collections.abc import Callable

FIRST_SECONDS = 2.0  # most answers have begun by then, and nothing is asked
AGAIN_SECONDS = 0.1  # the reset of the first one is noticed when the next is written
LATER_SECONDS = 5.0
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClose:
    """Of one connection; ends it, as any broken one, if the client is gone."""

    def __init__(
        self, transport: asyncio.WriteTransport, awaits_an_answer: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._awaits_an_answer = awaits_an_answer
        self._num_asked = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(FIRST_SECONDS, self._ask)

    def stop(self) -> None:
        self._timer.cancel()

    def _ask(self) -> None:
        if self._transport.is_closing() or not self._awaits_an_answer():
            return
        self._transport.write(_INTERIM)
        self._num_asked += 1
        pause = AGAIN_SECONDS if self._num_asked % 2 else LATER_SECONDS
        self._timer = self._loop.call_later(pause, self._ask)
