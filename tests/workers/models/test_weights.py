"""Loading: errors that name the tensor, dummy weights, and one copy in memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from segue.cluster.errors import ConfigurationError
from segue.workers.models.spec import ModelSpec, load_spec
from segue.workers.models.weights import ModelWeights, Placement, load_weights

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 12,
    "vocab_size": 16,
    "max_position_embeddings": 32,
}
SHAPES = {
    "model.embed_tokens.weight": (16, 8),
    "model.norm.weight": (8,),
    "lm_head.weight": (16, 8),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.k_proj.weight": (4, 8),
    "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.mlp.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 12),
}
PLACEMENT = Placement(torch.float32, torch.device("cpu"), lambda weight: weight)


def tensors() -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


def loaded(
    folder: Path,
    content: dict[str, torch.Tensor] | None,
    *,
    seed: int | None = None,
    **changes: Any,
) -> ModelWeights:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    if content is not None:
        save_file(content, folder / "model.safetensors")
    spec: ModelSpec = load_spec(folder, load_format="auto" if seed is None else "dummy")
    return load_weights(folder, spec, PLACEMENT, dummy_seed=seed)


def test_tensors_are_fused_in_order(tmp_path: Path) -> None:
    content = tensors()
    layer = loaded(tmp_path, content).layers[0]
    prefix = "model.layers.0"
    fused = [content[f"{prefix}.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(layer.qkv, torch.cat(fused))
    fused = [content[f"{prefix}.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(layer.gate_up, torch.cat(fused))


@pytest.mark.parametrize("name", SHAPES)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    content = tensors()
    del content[name]
    with pytest.raises(ConfigurationError, match=f"{name} is missing"):
        loaded(tmp_path, content)


@pytest.mark.parametrize("name", SHAPES)
def test_a_wrong_shape_is_named(tmp_path: Path, name: str) -> None:
    content = tensors() | {name: torch.zeros(3, 8)}
    with pytest.raises(ConfigurationError, match=rf"{name} has shape \[3, 8\]"):
        loaded(tmp_path, content)


def test_tensors_that_would_change_the_answer_are_refused(tmp_path: Path) -> None:
    bias = "model.layers.0.self_attn.q_proj.bias"
    with pytest.raises(ConfigurationError, match=bias):
        loaded(tmp_path, tensors() | {bias: torch.zeros(8)})
    quantised = tensors() | {"model.norm.weight": torch.ones(8, dtype=torch.int8)}
    with pytest.raises(ConfigurationError, match=r"norm\.weight is torch\.int8"):
        loaded(tmp_path, quantised)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    loaded(tmp_path, tensors())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigurationError, match=r"model\.safetensors"):
        loaded(tmp_path, None)


def test_tied_models_need_no_head(tmp_path: Path) -> None:
    content = tensors()
    del content["lm_head.weight"]
    weights = loaded(tmp_path, content, tie_word_embeddings=True)
    assert weights.head is weights.embedding


def test_dummy_weights_follow_from_the_seed_alone(tmp_path: Path) -> None:
    first, again = loaded(tmp_path, None, seed=1), loaded(tmp_path, None, seed=1)
    other = loaded(tmp_path, None, seed=2)
    assert torch.equal(first.layers[0].qkv, again.layers[0].qkv)
    assert not torch.equal(first.layers[0].qkv, other.layers[0].qkv)
    assert not torch.equal(first.layers[0].qkv[:4], first.layers[0].gate_up[:4])
    assert first.layers[0].input_norm.eq(1).all()
