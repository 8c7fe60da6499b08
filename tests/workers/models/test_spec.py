"""What is read from config.json, in both spellings, and what is refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from segue.cluster.errors import ConfigurationError
from segue.workers.models.sampling_defaults import SamplingDefaults
from segue.workers.models.spec import Llama3Scaling, load_spec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "eos_token_id": 7,
    "bos_token_id": 1,
}
SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def folder_of(path: Path, changes: dict[str, Any], **generation: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(LLAMA | changes))
    if generation:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def test_defaults_follow_the_llama_config(tmp_path: Path) -> None:
    spec = load_spec(folder_of(tmp_path, {}))
    assert (spec.head_dim, spec.num_kv_heads, spec.tied_embeddings) == (16, 2, False)
    assert (spec.rope_theta, spec.rope_scaling) == (10000.0, None)
    assert spec.eos_token_ids == {7}
    assert spec.sampling == SamplingDefaults(1.0, 1.0, 0, 0.0)


def test_generation_config_adds_ends_and_sampling(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path, {}, eos_token_id=[8, 9], bos_token_id=3, temperature=0.6, top_p=0.9, top_k=40
    )
    spec = load_spec(folder)
    assert spec.eos_token_ids == {7, 8, 9}
    assert spec.bos_token_id == 3
    assert spec.sampling == SamplingDefaults(0.6, 0.9, 40)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALING}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **SCALING}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **SCALING}},
    ],
)
def test_both_spellings_of_rope_scaling(tmp_path: Path, changes: dict[str, Any]) -> None:
    spec = load_spec(folder_of(tmp_path, changes))
    assert spec.rope_theta == 5e5
    assert spec.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    assert spec.position_settings != load_spec(folder_of(tmp_path / "plain", {})).position_settings


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "Qwen3ForCausalLM"),
        ({"architectures": None, "model_type": "gemma3"}, "gemma3"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"num_key_value_heads": 3}, "divide"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"rope_scaling": 5}, "understood"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"residual_multiplier": 0.2}, "residual_multiplier"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier"),
        ({"attention_multiplier": 0.01}, "attention_multiplier"),
        ({"no_rope_layers": [0]}, "no_rope_layers"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        (
            {"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": {"type": "linear"}},
            "rope_scaling 'linear'",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        load_spec(folder_of(tmp_path, changes))


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_broken_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        load_spec(tmp_path)


def weights(folder: Path, data: bytes) -> Path:
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + data)
    return folder


def test_the_revision_names_the_content_not_the_place(tmp_path: Path) -> None:
    data = bytes(100_000)
    revision = load_spec(weights(folder_of(tmp_path / "a", {}), data)).revision
    assert load_spec(weights(folder_of(tmp_path / "b", {}), data)).revision == revision
    tuned = weights(folder_of(tmp_path / "c", {}), b"\1" * 100_000)
    assert load_spec(tuned).revision != revision
    for place in (0, 12_345, 50_000, 99_999):  # one byte, anywhere
        other = bytearray(data)
        other[place] = 1
        folder = weights(folder_of(tmp_path / f"at-{place}", {}), bytes(other))
        assert load_spec(folder).revision != revision
    assert load_spec(weights(folder_of(tmp_path / "d", {}), data + b"\0")).revision != revision
    scaled = folder_of(tmp_path / "e", {"rope_theta": 3.0})
    assert load_spec(weights(scaled, data)).revision != revision


def test_dummy_weights_are_named_by_their_seed(tmp_path: Path) -> None:
    folder = weights(folder_of(tmp_path, {}), bytes(10))
    names = {
        load_spec(folder).revision,
        load_spec(folder, load_format="dummy").revision,
        load_spec(folder, load_format="dummy", dummy_seed=1).revision,
    }
    assert len(names) == 3


def test_the_number_of_parameters_is_that_of_the_weights(bundled_model: Path) -> None:
    with safe_open(bundled_model / "model.safetensors", "pt") as weights:
        sizes = [math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()]
    assert load_spec(bundled_model).num_parameters == sum(sizes)
