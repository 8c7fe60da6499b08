"""What a worker's KV is: its layout, what its blocks' keys name, and what peers compare."""

from segue.cluster.block_hash import BLOCK_HASH_VERSION, KeyScope
from segue.cluster.config import EngineConfig, ModelConfig
from segue.kernels.quantization import SCALE_BYTES
from segue.kvtransfer.layout import KVLayout
from segue.workers.models.spec import ModelSpec

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1, "int8": 1}


def kv_layout(
    model: ModelConfig, engine: EngineConfig, spec: ModelSpec, num_blocks: int
) -> KVLayout:
    quantised = engine.kv_cache_dtype != "auto"
    dtype = engine.kv_cache_dtype if quantised else model.dtype
    return KVLayout(
        num_blocks,
        spec.num_layers,
        spec.num_kv_heads,
        engine.block_size,
        spec.head_dim,
        dtype,
        _ITEM_BYTES[dtype],
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
