"""What a worker's KV is: its layout, what its blocks' keys name, and what peers compare."""

from segue.cluster.block_hash import BLOCK_HASH_VERSION, KeyScope
from segue.cluster.config.engine import EngineConfig
from segue.cluster.config.model import ModelConfig
from segue.kernels.scales import SCALE_BYTES
from segue.kvtransfer.layout import KVLayout
from segue.workers.models.spec import ModelSpec

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "int8": 1}


def kv_layout(
    model: ModelConfig, engine: EngineConfig, spec: ModelSpec, num_blocks: int
) -> KVLayout:
    return _layout(spec, model.dtype, engine.block_size, engine.kv_cache_dtype, num_blocks)


def kv_block_bytes(
    spec: ModelSpec, dtype: str, block_size: int, kv_cache_dtype: str = "auto"
) -> int:
    """What one block takes: keys and values of `block_size` tokens, all layers, scales included."""
    return _layout(spec, dtype, block_size, kv_cache_dtype, 1).block_bytes


def _layout(
    spec: ModelSpec, model_dtype: str, block_size: int, kv_cache_dtype: str, num_blocks: int
) -> KVLayout:
    quantised = kv_cache_dtype != "auto"
    dtype = kv_cache_dtype if quantised else model_dtype
    return KVLayout(
        num_blocks,
        spec.num_layers,
        spec.num_kv_heads,
        block_size,
        spec.head_dim,
        dtype,
        ITEM_BYTES[dtype],
        SCALE_BYTES if quantised else 0,
    )


def key_scope(model: ModelConfig, spec: ModelSpec, layout: KVLayout) -> KeyScope:
    """Codes say nothing of the numbers they were made from, so a key names the dtype of both."""
    stored = layout.storage
    return KeyScope(
        spec.revision,
        stored if stored == model.dtype else f"{stored} of {model.dtype}",
        layout.block_size,
        spec.position_settings,
    )


def fingerprint(model: ModelConfig, spec: ModelSpec, layout: KVLayout) -> dict[str, str]:
    """What prefill and decode workers must have in common."""
    return {
        "model_dtype": model.dtype,
        "model_revision": spec.revision,
        "position_settings": spec.position_settings,
        "block_hash": BLOCK_HASH_VERSION,
        **layout.fingerprint(),
    }
