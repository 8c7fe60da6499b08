"""A request head without its offer to switch to another protocol, which a server may ignore.

RFC 9110, 7.8. Java's HTTP client offers h2c with every request; llhttp then stops at the end of the
head and leaves the body to whoever switches.
"""

from collections.abc import Iterable

_OFFERS = {b"upgrade", b"http2-settings"}


def head_without_upgrade(
    method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """`headers` as a parser has read them, names in lower case."""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name in _OFFERS:
            continue
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            value = b", ".join(token for token in tokens if token.lower() not in _OFFERS)
            if not value:
                continue
        lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])
