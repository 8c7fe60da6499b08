"""Who may use which route: open to all, with an API key, with an admin key; others are closed.

A route that stands in no list here is answered 404, whatever key comes with it.
"""

from enum import Enum, auto

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from segue.router.api_keys import ApiKeys, GatewayKeys
from segue.router.error_body import error_response
from segue.router.exchange import exchange_of


class Access(Enum):
    OPEN = auto()  # costs little, and reveals nothing of requests
    KEY = auto()
    ADMIN = auto()  # changes how the cluster runs
    CLOSED = auto()


OPEN_PATHS = frozenset(
    {"/live", "/ready", "/health", "/ping", "/version", "/metrics"}
    | {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
)
KEY_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/detokenize"}
    | {"/debug/status", "/debug/trace"}
)
KEY_PREFIXES = ("/v1/models/",)
ADMIN_PATHS = frozenset({"/admin/migrate", "/admin/drain"})


def access_of(path: str) -> Access:
    if path in OPEN_PATHS:
        return Access.OPEN
    if path in KEY_PATHS or path.startswith(KEY_PREFIXES):
        return Access.KEY
    return Access.ADMIN if path in ADMIN_PATHS else Access.CLOSED


class AccessLayer:
    """`trusted`: without admin keys, whoever reaches the gateway may give orders."""

    def __init__(self, app: ASGIApp, keys: GatewayKeys, trusted: bool) -> None:
        self._app = app
        self._keys = keys
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        path: str = scope["path"]
        access = access_of(path)
        if access is Access.OPEN:
            return None
        authorization = Headers(scope=scope).get("authorization", "")
        administrator = _tenant(self._keys.admin, authorization)
        tenant = administrator or _tenant(self._keys.api, authorization)
        if self._keys.api is not None:
            if tenant is None:
                return _unknown("a valid API key")
            exchange_of(scope).tenant = tenant
        if access is Access.CLOSED:
            return error_response(404, f"there is no {path[:200]}")
        if access is Access.ADMIN and not administrator:
            return self._no_order(known=tenant is not None)
        return None

    def _no_order(self, known: bool) -> Response | None:
        if self._keys.admin is None:
            if self._trusted and self._keys.api is None:
                return None
            return error_response(
                403, "orders are closed: name a file of admin keys in gateway.admin_keys_file"
            )
        if known:
            return error_response(403, "an API key gives no orders: an admin key is needed")
        return _unknown("a valid admin key")


def _tenant(keys: ApiKeys | None, authorization: str) -> bytes | None:
    return None if keys is None else keys.tenant(authorization)


def _unknown(wanted: str) -> Response:
    return error_response(
        401,
        f"{wanted} is needed: Authorization: Bearer <key>",
        headers={"WWW-Authenticate": "Bearer"},
    )
