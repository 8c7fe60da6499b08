"""KV of unequal kinds is told apart three times: configuration, registration, keys of blocks."""

import json
from itertools import product
from pathlib import Path

import pytest

from segue.cluster.block_hash import root_key
from segue.cluster.config.control import ControlConfig
from segue.cluster.config.engine import EngineConfig
from segue.cluster.config.model import ModelConfig
from segue.cluster.fleet import Registration
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.registry import Registry
from segue.workers.kv_identity import fingerprint, key_scope, kv_block_bytes, kv_layout
from segue.workers.models.spec import ModelSpec, load_spec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}
DTYPES = ("float32", "bfloat16", "float16")
STORED = ("auto", "fp8_e4m3", "int8")


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return load_spec(tmp_path, load_format="dummy", dummy_seed=0)


def models_and_engines() -> list[tuple[ModelConfig, EngineConfig]]:
    return [
        (
            ModelConfig.model_validate({"dtype": dtype}),
            EngineConfig.model_validate({"kv_cache_dtype": stored}),
        )
        for dtype, stored in product(DTYPES, STORED)
    ]


def test_the_layout_counts_the_bytes_that_the_cache_takes(spec: ModelSpec) -> None:
    for model, engine in models_and_engines():
        layout = kv_layout(model, engine, spec, 5)
        stored = engine.kv_cache_dtype
        wanted = kv_block_bytes(spec, model.dtype, engine.block_size, stored)
        assert layout.block_bytes == wanted
        assert layout.num_blocks == 5
    elements = 3 * 2 * 2 * 16 * 16
    assert kv_block_bytes(spec, "float32", 16, "int8") == elements + elements // 16 * 4


def test_every_pair_of_dtypes_has_its_own_keys(spec: ModelSpec) -> None:
    scopes = [
        key_scope(model, spec, kv_layout(model, engine, spec, 5))
        for model, engine in models_and_engines()
    ]
    assert len({root_key(scope) for scope in scopes}) == len(scopes) == 9
    assert scopes[0].kv_dtype == "float32"
    assert scopes[1].kv_dtype == "fp8_e4m3 with float32 scales v1 of float32"


def test_a_worker_of_another_kv_dtype_is_refused_by_name(spec: ModelSpec) -> None:
    pairs = models_and_engines()
    for (model, engine), (other_model, other_engine) in product(pairs, pairs):
        ours = fingerprint(model, spec, kv_layout(model, engine, spec, 5))
        theirs = fingerprint(other_model, spec, kv_layout(other_model, other_engine, spec, 7))
        registry = Registry(ControlConfig(), "controller")
        for name, mark in (("both-0", ours), ("both-1", theirs)):
            peer = Peer(WorkerIdentity(name, "life"), "10.0.0.1:7")
            verdict = registry.register(Registration(peer, "both", "both", mark, 42), 0.0)
        assert verdict.accepted == ((model, engine) == (other_model, other_engine))
        if not verdict.accepted:
            stored = other_engine.kv_cache_dtype
            name = other_model.dtype if stored == "auto" else stored
            known = model.dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype
            field = "dtype" if name != known else "model_dtype"
            assert verdict.reason.startswith(f"refused: {field} is "), verdict.reason
