"""The outermost middleware: names an exchange, ends it when the client leaves, counts it once."""

import asyncio
import logging
import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from segue.router.api_types import REQUEST_ID_PATTERN
from segue.router.error_body import error_response
from segue.router.exchange import CLIENT_CLOSED_REQUEST, Exchange, attach
from segue.router.http_metrics import HttpMetrics
from segue.router.http_protocol import MAX_HEAD_BYTES
from segue.router.traffic_log import TrafficLog

log = logging.getLogger(__name__)

WIND_UP_SECONDS = 10.0  # for what runs when an exchange ends: closing generators, sending


class ExchangeLayer:
    """`limit_seconds` ends exchanges that nothing below could end, as with a client that stays
    connected but does not read."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: HttpMetrics,
        endpoint_of: Callable[[str], str],
        limit_seconds: float,
        traffic: TrafficLog,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._endpoint_of = endpoint_of
        self._limit_seconds = limit_seconds
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id")
        valid = given is not None and re.fullmatch(REQUEST_ID_PATTERN, given) is not None
        name = given if given is not None and valid else uuid.uuid4().hex
        exchange = Exchange(name, self._endpoint_of(scope["path"]), id_from_client=valid)
        attach(scope, exchange)
        link = _ClientLink(receive, send, exchange)
        try:
            if (refusal := _refused_head(scope, given, valid)) is not None:
                await refusal(scope, link.receive, link.send)
            else:
                await self._run(scope, link, exchange)
        except asyncio.CancelledError:  # the server ends and can not wait for the answer
            exchange.fail(503)
            if link.started:
                raise
            headers = {"Retry-After": "1"}
            response = error_response(503, "the gateway is stopping", headers=headers)
            await response(scope, link.receive, link.send)
        finally:
            self._metrics.ended(exchange)
            self._traffic.ended(scope["method"], scope["path"], exchange)

    async def _run(self, scope: Scope, link: "_ClientLink", exchange: Exchange) -> None:
        """Race the application against the client's leaving; streaming or not makes no odds."""
        work = asyncio.create_task(self._guarded(scope, link, exchange))
        hangup = asyncio.create_task(link.hangup())
        try:
            await asyncio.wait(
                {work, hangup}, timeout=self._limit_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if link.answered:
                # Servers also say "disconnect" once the answer is out: the work is ending.
                await asyncio.wait({work}, timeout=WIND_UP_SECONDS)
            elif not work.done():
                exchange.fail(CLIENT_CLOSED_REQUEST if hangup.done() else 504)
        finally:
            hangup.cancel()
            work.cancel()
            _, pending = await asyncio.wait({work, hangup}, timeout=WIND_UP_SECONDS)
            if pending:
                log.error("request %s does not end", exchange.request_id)
        if exchange.status == 504 and not link.started:
            response = error_response(504, "the request took too long")
            await response(scope, link.receive, link.send)

    async def _guarded(self, scope: Scope, link: "_ClientLink", exchange: Exchange) -> None:
        try:
            async with exchange.exits:
                await self._app(scope, link.receive, link.send)
        except ClientDisconnect:
            exchange.fail(CLIENT_CLOSED_REQUEST)
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            exchange.fail(500)
            if not link.started:
                response = error_response(500, "internal error")
                await response(scope, link.receive, link.send)


def _refused_head(scope: Scope, request_id: str | None, valid: bool) -> Response | None:
    num_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
    if num_bytes > MAX_HEAD_BYTES:
        return error_response(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes")
    if request_id is not None and not valid:
        message = "X-Request-Id must be 1 to 128 printable ASCII characters"
        return error_response(400, message, param="X-Request-Id")
    return None


class _ClientLink:
    """The two ends of the connection. After the body only `hangup` listens to the client."""

    def __init__(self, receive: Receive, send: Send, exchange: Exchange) -> None:
        self._receive = receive
        self._send = send
        self._exchange = exchange
        self._body_ended = asyncio.Event()
        self._gone = asyncio.Event()
        self.started = False
        self.answered = False

    async def receive(self) -> Message:
        if self._body_ended.is_set():
            await self._gone.wait()
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone.set()
        elif not message.get("more_body", False):
            self._body_ended.set()
        return message

    async def hangup(self) -> None:
        """Return when the client has left; before the end of the body `receive` tells that."""
        await self._body_ended.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            if self._exchange.status is None:
                self._exchange.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._exchange.request_id
            headers.update(self._exchange.headers)
        elif not message.get("more_body", False):
            self.answered = True
        await self._send(message)
