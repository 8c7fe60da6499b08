"""How many KV blocks fit: the device's free memory, a limit in tokens, a limit in bytes.

Memory is rounded down to whole blocks, because more does not exist. Tokens are rounded up, so that
as many fit as were asked for. The smallest limit wins, and is named.
"""

from dataclasses import dataclass
from fractions import Fraction

from segue.cluster.config.engine import EngineConfig
from segue.cluster.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class BlockSize:
    tokens: int
    num_bytes: int

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.num_bytes < 1:
            raise ValueError(f"a block holds at least one token and one byte, got {self}")


@dataclass(frozen=True, slots=True)
class CacheSize:
    num_blocks: int
    limited_by: str


def share_of(free_bytes: int, fraction: float) -> int:
    """`fraction` of the bytes, exactly as the decimal was written, rounded down."""
    if not 0 < fraction < 1:
        raise ConfigurationError(
            f"free_gpu_memory_fraction must lie between 0 and 1, got {fraction}",
            param="free_gpu_memory_fraction",
        )
    return int(free_bytes * Fraction(repr(fraction)))


def size_cache(
    block: BlockSize, memory_bytes: int, *, max_tokens: int | None = None, max_bytes: int = 0
) -> CacheSize:
    """Blocks in `memory_bytes`, if neither `max_tokens` nor `max_bytes` (0: no limit) is less.

    Raises ConfigurationError if not even one fits.
    """
    limits = {"memory": max(0, memory_bytes) // block.num_bytes}
    if max_bytes:
        limits["max_bytes"] = max_bytes // block.num_bytes
    if max_tokens is not None:
        limits["max_tokens"] = -(-max_tokens // block.tokens)
    smallest = min(limits, key=lambda name: limits[name])
    if limits[smallest] < 1:
        raise ConfigurationError(
            f"the KV-cache has no room for one block of {block.num_bytes} bytes: "
            f"{smallest} allows {_said(smallest, memory_bytes, max_tokens, max_bytes)}",
            param="kv_cache",
        )
    return CacheSize(limits[smallest], smallest)


def host_slots(block: BlockSize, host_cache_bytes: int) -> int:
    """Blocks that the host tier holds; 0 bytes: there is none.

    Raises ConfigurationError if something was asked for and not even one block fits.
    """
    slots = host_cache_bytes // block.num_bytes
    if host_cache_bytes and slots < 1:
        raise ConfigurationError(
            f"host_cache_bytes {host_cache_bytes} is less than one block of {block.num_bytes}",
            param="host_cache_bytes",
        )
    return slots


def _said(limit: str, memory_bytes: int, max_tokens: int | None, max_bytes: int) -> str:
    if limit == "memory":
        return f"{max(0, memory_bytes)} bytes"
    return f"{max_bytes} bytes" if limit == "max_bytes" else f"{max_tokens} tokens"


def num_kv_blocks(engine: EngineConfig, block: BlockSize, memory_bytes: int) -> int:
    """What is asked for, or what fits into the memory; never more than the limit in tokens."""
    if engine.num_kv_blocks != "auto":
        memory_bytes = engine.num_kv_blocks * block.num_bytes
    return size_cache(block, memory_bytes, max_tokens=engine.max_kv_tokens).num_blocks


def check_longest_sequence(
    max_model_len: int, block_size: int, num_blocks: int, block_bytes: int
) -> None:
    """A sequence that can never fit must be told at start, not by requests that fail for ever."""
    needed = -(-max_model_len // block_size)
    if needed > num_blocks:
        raise ConfigurationError(
            f"model.max_model_len ({max_model_len}) needs {needed} KV blocks of {block_size} "
            f"tokens, but the KV-cache has {num_blocks} (room for {num_blocks * block_size} "
            f"tokens); lower model.max_model_len or give the KV-cache {needed * block_bytes} bytes"
        )
