"""Loads a model's weights into the fused layout the forward pass multiplies with.

Each tensor is read, checked, converted and copied into its place before the next one is read, so
that memory holds the model once.
"""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from segue.cluster.errors import ConfigurationError
from segue.workers.models.spec import ModelSpec, weight_files


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: torch.Tensor
    qkv: torch.Tensor  # rows: query heads, key heads, value heads
    attention_output: torch.Tensor
    post_attention_norm: torch.Tensor
    gate_up: torch.Tensor  # rows: gate, up
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: torch.Tensor  # the embedding itself when they are tied


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of the checkpoint and the place it is copied to."""

    name: str
    target: torch.Tensor


class _Source(Protocol):
    def read(self, part: _Part) -> torch.Tensor: ...


def load_weights(
    folder: Path,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    dummy_seed: int | None = None,
) -> ModelWeights:
    """Read the weights, or draw them from `dummy_seed`. Raises ConfigurationError."""
    weights = _allocate(spec, dtype, device)
    parts = list(_parts(spec, weights))
    with ExitStack() as stack:
        source: _Source
        if dummy_seed is not None:
            source = _Dummy(dummy_seed, spec.initializer_range)
        else:
            source = _Checkpoint(folder, stack)
            source.refuse_unknown({part.name for part in parts}, spec)
        for part in parts:
            tensor = source.read(part)
            if tensor.shape != part.target.shape:
                raise ConfigurationError(
                    f"{folder}: tensor {part.name} has shape {list(tensor.shape)}, "
                    f"expected {list(part.target.shape)}"
                )
            part.target.copy_(tensor)
    return weights


def _allocate(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    embedding = empty(spec.vocab_size, hidden)
    layers = tuple(
        LayerWeights(
            input_norm=empty(hidden),
            qkv=empty(query + 2 * key, hidden),
            attention_output=empty(hidden, query),
            post_attention_norm=empty(hidden),
            gate_up=empty(2 * inner, hidden),
            down=empty(hidden, inner),
        )
        for _ in range(spec.num_layers)
    )
    head = embedding if spec.tied_embeddings else empty(spec.vocab_size, hidden)
    return ModelWeights(embedding, layers, empty(hidden), head)


def _parts(spec: ModelSpec, weights: ModelWeights) -> Iterator[_Part]:
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    yield _Part("model.embed_tokens.weight", weights.embedding)
    for index, layer in enumerate(weights.layers):
        q, k, v = layer.qkv.split((query, key, key))
        gate, up = layer.gate_up.chunk(2)
        for name, target in (
            ("input_layernorm", layer.input_norm),
            ("self_attn.q_proj", q),
            ("self_attn.k_proj", k),
            ("self_attn.v_proj", v),
            ("self_attn.o_proj", layer.attention_output),
            ("post_attention_layernorm", layer.post_attention_norm),
            ("mlp.gate_proj", gate),
            ("mlp.up_proj", up),
            ("mlp.down_proj", layer.down),
        ):
            yield _Part(f"model.layers.{index}.{name}.weight", target)
    yield _Part("model.norm.weight", weights.final_norm)
    if not spec.tied_embeddings:
        yield _Part("lm_head.weight", weights.head)


class _Checkpoint:
    """Safetensors files, one or several, opened for the time of the load."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._where: dict[str, Any] = {}
        for path in weight_files(folder):
            try:
                file: Any = stack.enter_context(safe_open(path, framework="pt"))
                self._where.update(dict.fromkeys(file.keys(), file))
            except (OSError, SafetensorError) as error:
                raise ConfigurationError(f"{path}: cannot be read: {error}") from error
        if not self._where:
            raise ConfigurationError(f"{folder} holds no safetensors weights")

    def refuse_unknown(self, known: set[str], spec: ModelSpec) -> None:
        """A tensor nobody asks for (a bias, an adapter) would change the model's answers."""
        for name in sorted(self._where.keys() - known):
            harmless = name.endswith("rotary_emb.inv_freq") or (
                name == "lm_head.weight" and spec.tied_embeddings
            )
            if not harmless:
                raise ConfigurationError(f"{self._folder}: tensor {name} is not known in a Llama")

    def read(self, part: _Part) -> torch.Tensor:
        if part.name not in self._where:
            raise ConfigurationError(f"{self._folder}: tensor {part.name} is missing")
        tensor: torch.Tensor = self._where[part.name].get_tensor(part.name)
        if not tensor.is_floating_point():
            raise ConfigurationError(
                f"{self._folder}: tensor {part.name} is {tensor.dtype}, expected a float type"
            )
        return tensor


class _Dummy:
    """Random weights; each tensor depends on the seed and its own name only."""

    def __init__(self, seed: int, deviation: float) -> None:
        self._seed = seed
        self._deviation = deviation

    def read(self, part: _Part) -> torch.Tensor:
        if part.target.dim() == 1:
            return torch.ones(part.target.shape)
        digest = hashlib.sha256(f"{self._seed}\0{part.name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        return torch.empty(part.target.shape).normal_(0, self._deviation, generator=generator)
