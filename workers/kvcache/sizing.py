"""How many KV blocks a worker has, and whether its longest sequence fits them. Pure."""

from segue.cluster.config import EngineConfig
from segue.cluster.errors import ConfigurationError
from segue.workers.models.spec import ModelSpec

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def kv_block_bytes(spec: ModelSpec, dtype: str, block_size: int) -> int:
    """What one block takes in the cache: keys and values of `block_size` tokens, all layers."""
    items = 2 * spec.num_layers * spec.num_kv_heads * block_size * spec.head_dim
    return items * ITEM_BYTES[dtype]


def num_kv_blocks(engine: EngineConfig, block_bytes: int, budget_bytes: int) -> int:
    """What is asked for, else what `budget_bytes` have room for."""
    if engine.num_kv_blocks != "auto":
        return engine.num_kv_blocks
    return max(1, budget_bytes // block_bytes)


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
