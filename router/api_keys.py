"""The keys that clients may send: read from their files, kept as digests."""

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from segue.cluster.config.gateway import GatewayConfig
from segue.cluster.errors import ConfigurationError
from segue.router.cache_salt import tenant_of


class ApiKeys:
    """Only digests are kept, and every one is compared, so that time tells nothing."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = frozenset(_digest(key.encode()) for key in keys)

    def tenant(self, authorization: str) -> bytes | None:
        """Whose key it is, without the key itself; None if it is nobody's."""
        scheme, _, text = authorization.partition(" ")
        key = text.strip().encode("latin-1", "replace")
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return tenant_of(key) if scheme.lower() == "bearer" and any(matches) else None

    def shares_one_with(self, others: "ApiKeys") -> bool:
        return not self._digests.isdisjoint(others._digests)


@dataclass(frozen=True, slots=True)
class GatewayKeys:
    """`api` None: no key is asked. `admin` None: nobody has an admin key."""

    api: ApiKeys | None
    admin: ApiKeys | None


def load_keys(config: GatewayConfig) -> GatewayKeys:
    """Raises ConfigurationError that names the file's setting."""
    api = _load(config.api_keys_file, "gateway.api_keys_file")
    admin = _load(config.admin_keys_file, "gateway.admin_keys_file")
    if api and admin and api.shares_one_with(admin):
        raise ConfigurationError(
            "gateway.admin_keys_file holds a key that is in gateway.api_keys_file too: whoever "
            "may ask could give orders"
        )
    return GatewayKeys(api, admin)


def _load(path: str | None, setting: str) -> ApiKeys | None:
    if path is None:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{setting} can not be read") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        # An empty file must not mean "no key is asked".
        raise ConfigurationError(f"{setting} holds no key")
    return ApiKeys(keys)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
