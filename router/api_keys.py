"""Asks for an API key on the routes that cost or reveal something."""

import hashlib
import hmac
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from segue.cluster.errors import ConfigurationError
from segue.router.cache_salt import tenant_of
from segue.router.error_body import error_response
from segue.router.exchange import exchange_of

_GUARDED = ("/v1", "/tokenize", "/detokenize", "/debug", "/admin")


class ApiKeys:
    """Only digests are kept, and every one is compared, so that time tells nothing."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def tenant(self, authorization: str) -> bytes | None:
        """Whose key it is, without the key itself; None if it is nobody's."""
        scheme, _, text = authorization.partition(" ")
        key = text.strip().encode("latin-1", "replace")
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return tenant_of(key) if scheme.lower() == "bearer" and any(matches) else None


def load_api_keys(path: str | None) -> ApiKeys | None:
    if path is None:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError("gateway.api_keys_file can not be read") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        # An empty file must not mean "no key is asked".
        raise ConfigurationError("gateway.api_keys_file holds no key")
    return ApiKeys(keys)


class ApiKeyLayer:
    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_guarded(scope["path"]):
            tenant = self._keys.tenant(Headers(scope=scope).get("authorization", ""))
            if tenant is None:
                response = error_response(
                    401,
                    "a valid API key is needed: Authorization: Bearer <key>",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await response(scope, receive, send)
                return
            exchange_of(scope).tenant = tenant
        await self._app(scope, receive, send)


def _is_guarded(path: str) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in _GUARDED)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
