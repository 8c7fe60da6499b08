"""Converts a GGUF file of the Llama architecture into the files of a Hugging Face folder.

The only importer of `gguf`. Every tensor keeps its own float type; quantised ones become float16:
its rounding (2^-11 of a value) is far below the steps of any GGUF quantisation, at half the size
of float32. A tensor with a value beyond float16's range is kept in float32.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader
from gguf import dequantize as gguf_dequantize

from segue.cluster.errors import ConfigurationError
from segue.workers.models.gguf_tokenizer import tokenizer_config, tokenizer_json

CONVERTER_VERSION = 2
_ALIGNMENT = 64

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
# What changes the computation and is not implemented, each with the value that asks for nothing.
_VARIANTS: dict[str, Any] = {
    "llama.rope.scaling.type": "none",
    "llama.rope.scaling.factor": 1.0,  # llama.cpp: linear scaling, if no type is told
    "llama.rope.scaling.attn_factor": 1.0,
    "llama.rope.scale_linear": 1.0,  # the older name
    "llama.attention.sliding_window": 0,
    "llama.attention.scale": 0.0,
    "llama.attention.clamp_kqv": 0.0,
    "llama.attention.max_alibi_bias": 0.0,
    "llama.attention.causal": True,
    "llama.attn_logit_softcapping": 0.0,
    "llama.final_logit_softcapping": 0.0,
    "llama.logit_scale": 1.0,
    "llama.residual_scale": 1.0,
    "llama.embedding_scale": 1.0,
    "llama.use_parallel_residual": False,
}
# llama.cpp's names of sampling defaults, and those of generation_config.json.
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_ROPE_FACTORS = "rope_freqs.weight"  # Llama 3.1 scaling, as one divisor for each frequency


def convert_gguf(path: Path, folder: Path, sampling: Mapping[str, float] | None = None) -> None:
    """Write config, tokenizer and weights into `folder`. Raises ConfigurationError.

    `sampling`: defaults of requests, where the file has none of its own.
    """
    try:
        reader = GGUFReader(path)
        source = _Source(path, {key: field.contents() for key, field in reader.fields.items()})
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        message = f"{path} is truncated, or no readable GGUF file: {error}"
        raise ConfigurationError(message) from error
    try:
        _convert(reader, source, folder, sampling or {})
    except KeyError as error:
        raise ConfigurationError(f"{path}: metadata {error.args[0]} is missing") from error
    except (ValueError, IndexError, TypeError) as error:
        raise ConfigurationError(f"{path}: cannot be understood: {error!r}") from error


def _convert(
    reader: GGUFReader, source: "_Source", folder: Path, sampling: Mapping[str, float]
) -> None:
    source.check_architecture()
    path = source.path
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    factors = tensors.pop(_ROPE_FACTORS, None)
    config = _model_config(source, tied="output.weight" not in tensors)
    if factors is not None:
        divisors = gguf_dequantize(factors.data, factors.tensor_type)
        config["rope_parameters"].update(_llama3_scaling(source, config, divisors))
    _write_json(folder / "config.json", config)
    generation = {**sampling, **_generation_config(source)}
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(source.metadata))
    (folder / "tokenizer.json").write_text(tokenizer_json(source.metadata, path), encoding="utf-8")
    _write_safetensors(folder / "model.safetensors", _plan(source, tensors, config))


@dataclass(frozen=True, slots=True)
class _Source:
    path: Path
    metadata: Mapping[str, Any]

    def check_architecture(self) -> None:
        name = self.metadata.get("general.architecture")
        if name != "llama":
            raise ConfigurationError(
                f"{self.path}: GGUF architecture {name!r} is not supported; supported: 'llama'"
            )
        if self.metadata.get("llama.expert_count"):
            raise ConfigurationError(f"{self.path}: mixture of experts is not supported")
        if (count := self.metadata.get("split.count", 1)) > 1:
            number = int(self.metadata.get("split.no", 0)) + 1
            raise ConfigurationError(
                f"{self.path} is part {number} of {count} of a split model; join the parts with "
                "llama.cpp's gguf-split --merge"
            )
        for key, neutral in _VARIANTS.items():
            value = self.metadata.get(key, neutral)
            if value != neutral:
                raise ConfigurationError(f"{self.path}: {key} = {value!r} is not supported")

    def required(self, key: str) -> Any:
        if (value := self.metadata.get(key)) is None:
            raise ConfigurationError(f"{self.path}: metadata {key} is missing")
        return value


def _model_config(source: _Source, *, tied: bool) -> dict[str, Any]:
    get = source.metadata.get
    heads = source.required("llama.attention.head_count")
    hidden = source.required("llama.embedding_length")
    head_dim = get("llama.attention.key_length", hidden // heads)
    if get("llama.rope.dimension_count", head_dim) != head_dim:
        raise ConfigurationError(f"{source.path}: rotating a part of a head is not supported")
    # GGUF keeps float32: 1e-5 is stored as 9.999999747e-06, and its shortest spelling is meant
    epsilon = float(str(np.float32(source.required("llama.attention.layer_norm_rms_epsilon"))))
    theta = float(str(np.float32(get("llama.rope.freq_base", 10000.0))))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": source.required("llama.block_count"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": source.required("llama.feed_forward_length"),
        "vocab_size": len(source.required("tokenizer.ggml.tokens")),
        "max_position_embeddings": source.required("llama.context_length"),
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rms_norm_eps": epsilon,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float16",
    }


def _generation_config(source: _Source) -> dict[str, Any]:
    get = source.metadata.get
    named = [get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends = {int(token_id) for token_id in named if token_id is not None}
    stored = {theirs: get(ours) for ours, theirs in _SAMPLING.items() if get(ours) is not None}
    sampling = {name: float(str(np.float32(value))) for name, value in stored.items()}
    return {
        **sampling,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted(ends),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"),
    }


def _llama3_scaling(
    source: _Source, config: Mapping[str, Any], divisors: npt.NDArray[np.float32]
) -> dict[str, Any]:
    """Recover the parameters behind the divisors; the converter of llama.cpp drops them."""
    scaling = {
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    dim = config["head_dim"]
    wavelengths = 2 * math.pi * config["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((8192 / wavelengths - 1.0) / 3.0, 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / scaling["factor"] + smooth)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise ConfigurationError(f"{source.path}: {_ROPE_FACTORS} is not Llama 3.1's scaling")
    return scaling


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor to write: its type and bytes are only made when asked for."""

    name: str
    raw: Any  # gguf.ReaderTensor
    unpermuted_heads: int | None

    @property
    def shape(self) -> list[int]:
        return [int(size) for size in reversed(self.raw.shape)]

    def values(self) -> tuple[str, npt.NDArray[Any]]:
        """The safetensors type and the array, of which only shape[0] and the bytes count."""
        kind = self.raw.tensor_type
        if kind == GGMLQuantizationType.BF16:
            dtype, array = "BF16", self.raw.data.view(np.uint16)
        elif kind in (GGMLQuantizationType.F16, GGMLQuantizationType.F32):
            dtype, array = kind.name, self.raw.data
        else:
            exact = gguf_dequantize(self.raw.data, kind)
            dtype, array = "F16", exact
            if np.abs(exact).max(initial=0.0) > np.finfo(np.float16).max:
                dtype = "F32"
            else:
                array = exact.astype(np.float16)
        array = array.reshape(self.shape)
        if self.unpermuted_heads is not None:
            array = _unpermute(array, self.unpermuted_heads)
        return dtype, np.ascontiguousarray(array)


def _unpermute(array: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Undo llama.cpp's interleaving of the two halves of each head, which HF's rope rotates."""
    rows, columns = array.shape
    pairs = array.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _plan(
    source: _Source, tensors: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[_Tensor]:
    heads = {
        "attn_q.weight": config["num_attention_heads"],
        "attn_k.weight": config["num_key_value_heads"],
    }
    for name, tensor in tensors.items():
        if name in _GLOBAL_NAMES:
            yield _Tensor(_GLOBAL_NAMES[name], tensor, None)
            continue
        prefix, _, rest = name.partition(".")
        layer, _, part = rest.partition(".")
        if prefix != "blk" or not layer.isdigit() or part not in _LAYER_NAMES:
            raise ConfigurationError(f"{source.path}: tensor {name} is not known in a Llama model")
        yield _Tensor(f"model.layers.{layer}.{_LAYER_NAMES[part]}", tensor, heads.get(part))


def _write_safetensors(path: Path, tensors: Iterator[_Tensor]) -> None:
    """Stream the tensors out one at a time: no second whole copy of the model in memory.

    The header needs every type and size before the data; its room is set aside and filled last.
    """
    planned = list(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    room = sum(len(tensor.name) + 160 for tensor in planned) + 64
    room += -(room + 8) % _ALIGNMENT
    with path.open("wb") as file:
        file.seek(8 + room)
        offset = 0
        for tensor in planned:
            dtype, array = tensor.values()
            file.write(array.data)
            span = [offset, offset + array.nbytes]
            header[tensor.name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": span}
            offset += array.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        file.seek(0)
        file.write(room.to_bytes(8, "little") + text.ljust(room))


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    kept = {key: value for key, value in data.items() if value is not None}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
