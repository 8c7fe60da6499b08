"""Tells errors to clients: OpenAI's nested body, the right status, and headers for retries."""

import logging
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from segue.cluster.errors import (
    DeadlineExceeded,
    InternalError,
    Overloaded,
    SegueError,
    Unavailable,
)
from segue.router.exchange import exchange_of

log = logging.getLogger(__name__)

_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "TimeoutError",
    413: "RequestTooLargeError",
    431: "RequestTooLargeError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}
_MAX_MESSAGE_CHARS = 1000


def error_body(status: int, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    """`code` is the HTTP status, always a number: `type` has the words."""
    text = message if len(message) <= _MAX_MESSAGE_CHARS else message[:_MAX_MESSAGE_CHARS] + "..."
    return {"error": {"message": text, "type": kind, "param": param, "code": status}}


def public_error(error: SegueError) -> dict[str, Any]:
    """What a client may read of `error`; the words of internal errors stay in the log."""
    if isinstance(error, InternalError):
        return error_body(error.http_status, error.kind, "the request failed inside the cluster")
    return error_body(error.http_status, error.kind, error.message, error.param)


def kind_of(status: int) -> str:
    """The `type` of an error that is told by a status alone."""
    return _KINDS.get(status, "InternalServerError")


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    body = error_body(status, kind_of(status), message, param)
    return _json(status, body, headers)


def segue_error_response(error: SegueError, overload_status: int) -> Response:
    status = error.http_status
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        status = overload_status
    if isinstance(error, Overloaded | Unavailable):
        headers["Retry-After"] = str(error.retry_after_seconds)
    if isinstance(error, DeadlineExceeded):
        headers["x-should-retry"] = "false"  # OpenAI's clients would do it all over again, twice
    body = public_error(error)
    body["error"]["code"] = status
    return _json(status, body, headers)


def install_error_responses(app: FastAPI, overload_status: int) -> None:
    """No answer of `app` may have another shape: neither FastAPI's 422 nor {"detail": ...}."""

    async def on_segue_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, SegueError):
            raise error
        exchange = exchange_of(request.scope)
        response = segue_error_response(error, overload_status)
        overloaded = isinstance(error, Overloaded)
        exchange.fail(response.status_code, "overload" if overloaded else None)
        if isinstance(error, InternalError):
            log.error("request %s failed: %s", exchange.request_id, error.message)
        return response

    async def on_http_exception(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        path = request.scope["path"][:200]  # request.url takes "//name" for a host
        messages = {
            404: f"there is no {path}",
            405: f"{request.method[:20]} is not allowed on {path}",
        }
        message = messages.get(error.status_code, str(error.detail))
        headers = dict(error.headers) if error.headers else None
        return error_response(error.status_code, message, headers=headers)

    async def on_validation_error(request: Request, error: Exception) -> Response:
        return error_response(400, "the request is not valid")

    app.add_exception_handler(SegueError, on_segue_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_validation_error)


def _json(status: int, body: dict[str, Any], headers: dict[str, str] | None) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")
