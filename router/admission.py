"""Bounds how many requests are in the gateway at once; refuses before a body is even read."""

from starlette.types import ASGIApp, Receive, Scope, Send

from segue.cluster.config.gateway import AdmissionConfig
from segue.cluster.errors import Overloaded, Unavailable
from segue.router.draining import Draining
from segue.router.error_body import segue_error_response
from segue.router.exchange import exchange_of

ADMITTED_PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"})


class Admission:
    """The number of requests between their first byte and the last byte of their answer."""

    def __init__(self, config: AdmissionConfig, draining: Draining) -> None:
        self._config = config
        self._draining = draining
        self.num_admitted = 0

    def enter(self) -> None:
        """Raises Overloaded or Unavailable; else `leave` follows."""
        limit = self._config.max_queued_requests
        if self.num_admitted >= limit:
            raise Overloaded(
                f"the gateway is full: max_queued_requests is {limit}",
                retry_after_seconds=self._config.retry_after_s,
            )
        self._draining.entered()
        self.num_admitted += 1

    def leave(self) -> None:
        self.num_admitted -= 1
        self._draining.left()


class AdmissionLayer:
    """ASGI middleware; a slot is held until the answer, streamed or not, has been sent."""

    def __init__(self, app: ASGIApp, admission: Admission, overload_status: int) -> None:
        self._app = app
        self._admission = admission
        self._overload_status = overload_status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ADMITTED_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            self._admission.enter()
        except (Overloaded, Unavailable) as error:
            response = segue_error_response(error, self._overload_status)
            overloaded = isinstance(error, Overloaded)
            exchange_of(scope).fail(response.status_code, "overload" if overloaded else None)
            await response(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._admission.leave()
