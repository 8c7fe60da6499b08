"""Keeps cached prefixes of different API keys apart: the salt of a request's KV blocks.

    tenant = HMAC(API key, label)      salt = HMAC(tenant, the client's cache_salt)

Every gateway with the same keys derives the same salts, and none of them tells a key.
"""

import hmac
from dataclasses import replace

from segue.router.request_plan import RequestPlan

_LABEL = b"segue cache tenant, version 1"


def tenant_of(api_key: bytes) -> bytes:
    return hmac.digest(api_key, _LABEL, "sha256")


def tenant_salt(tenant: bytes, cache_salt: str) -> str:
    """`cache_salt`: what the client has chosen, "" if nothing."""
    return hmac.digest(tenant, cache_salt.encode(), "sha256").hex()


def salted(plan: RequestPlan, tenant: bytes) -> RequestPlan:
    requests = tuple(
        replace(request, cache_salt=tenant_salt(tenant, request.cache_salt))
        for request in plan.requests
    )
    return replace(plan, requests=requests)
