"""Names KV blocks by content: a SHA-256 chain over everything that changes a block's values.

key(block i) = SHA-256(key(block i-1) || tokens of block i as little-endian uint32)
key(root)    = SHA-256 over a tagged serialisation of the KeyScope; an absent value has its own
               tag, so "no adapter" and "adapter named ''" differ. No process seed takes part.
"""

import hashlib
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

BLOCK_HASH_VERSION = "segue-sha256-v1"
WORD_BYTES = array("I").itemsize
BIG_ENDIAN = sys.byteorder == "big"
if WORD_BYTES != 4:
    raise ImportError("keys of blocks need a platform whose unsigned int has 32 bits")


@dataclass(frozen=True, slots=True)
class KeyScope:
    """What blocks must have in common before tokens are compared at all."""

    model_revision: str
    kv_dtype: str
    block_size: int
    position_settings: str
    adapter: str | None = None
    salt: str | None = None


def root_key(scope: KeyScope) -> bytes:
    digest = hashlib.sha256(BLOCK_HASH_VERSION.encode())
    for name in fields(scope):
        value = getattr(scope, name.name)
        tag = b"absent" if value is None else b"value"
        data = b"" if value is None else str(value).encode()
        for part in (name.name.encode(), tag, data):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def token_words(token_ids: Sequence[int]) -> bytes:
    """The tokens as little-endian uint32, the form in which they are hashed and compared."""
    words = array("I", token_ids)
    if BIG_ENDIAN:
        words.byteswap()
    return words.tobytes()


def chained_key(parent: bytes, words: bytes) -> bytes:
    """`child_key` of tokens that are words already."""
    return hashlib.sha256(parent + words).digest()


def child_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    return chained_key(parent, token_words(token_ids))


def block_keys(root: bytes, token_ids: Sequence[int], block_size: int) -> Iterator[bytes]:
    """Yield the key of each whole block of `token_ids`, first to last."""
    key = root
    for end in range(block_size, len(token_ids) + 1, block_size):
        key = child_key(key, token_ids[end - block_size : end])
        yield key
