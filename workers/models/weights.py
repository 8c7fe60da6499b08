"""Loads a model's weights into the fused, packed layout the forward pass multiplies with.

Each tensor is read, checked, converted and copied into its place before the next one is read, and
each layer is packed before the next one is begun, so that memory holds the model once.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from segue.cluster.errors import ConfigurationError
from segue.workers.models.spec import ModelSpec
from segue.workers.models.weight_files import weight_files


@dataclass(frozen=True, slots=True)
class Placement:
    """Where weights live and in which form."""

    dtype: torch.dtype
    device: torch.device
    pack_weight: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices are packed for the device's `linear`; norms are plain."""

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
    head: torch.Tensor  # packed; the same values as the embedding when they are tied


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of the checkpoint, and the rows it fills of the tensor it is fused into."""

    name: str
    shape: tuple[int, ...]


class _Source(Protocol):
    def read(self, part: _Part) -> torch.Tensor:
        """A tensor of the part's shape. Raises ConfigurationError that names it."""
        ...


def load_weights(
    folder: Path, spec: ModelSpec, placement: Placement, *, dummy_seed: int | None = None
) -> ModelWeights:
    """Read the weights, or draw them from `dummy_seed`. Raises ConfigurationError."""
    if dummy_seed is not None:
        return _load(_Dummy(dummy_seed, spec.initializer_range), spec, placement)
    with ExitStack() as stack:
        source = _Checkpoint(folder, stack)
        source.refuse_unknown(spec)
        return _load(source, spec, placement)


def _load(source: _Source, spec: ModelSpec, placement: Placement) -> ModelWeights:
    def fused(*parts: _Part) -> torch.Tensor:
        rows = [part.shape[0] for part in parts]
        shape = (sum(rows), *parts[0].shape[1:])
        whole = torch.empty(shape, dtype=placement.dtype, device=placement.device)
        first = 0
        for part, count in zip(parts, rows, strict=True):
            whole[first : first + count].copy_(source.read(part))
            first += count
        return whole

    pack = placement.pack_weight
    layers: list[LayerWeights] = []
    for index in range(spec.num_layers):
        norms, (qkv, output, gate_up, down) = _layer_parts(spec, f"model.layers.{index}")
        layers.append(
            LayerWeights(
                input_norm=fused(norms[0]),
                qkv=pack(fused(*qkv)),
                attention_output=pack(fused(*output)),
                post_attention_norm=fused(norms[1]),
                gate_up=pack(fused(*gate_up)),
                down=pack(fused(*down)),
            )
        )
    embedding = fused(_embedding(spec))
    head = embedding if spec.tied_embeddings else fused(_head(spec))
    return ModelWeights(embedding, tuple(layers), fused(_final_norm(spec)), pack(head))


def _layer_parts(spec: ModelSpec, prefix: str) -> tuple[Sequence[_Part], Sequence[Sequence[_Part]]]:
    """The norms of a layer, and its matrices in groups that are multiplied as one."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

    def part(name: str, *shape: int) -> _Part:
        return _Part(f"{prefix}.{name}.weight", shape)

    norms = (part("input_layernorm", hidden), part("post_attention_layernorm", hidden))
    qkv = (
        part("self_attn.q_proj", query, hidden),
        part("self_attn.k_proj", key, hidden),
        part("self_attn.v_proj", key, hidden),
    )
    output = (part("self_attn.o_proj", hidden, query),)
    gate_up = (part("mlp.gate_proj", inner, hidden), part("mlp.up_proj", inner, hidden))
    return norms, (qkv, output, gate_up, (part("mlp.down_proj", hidden, inner),))


def _embedding(spec: ModelSpec) -> _Part:
    return _Part("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))


def _final_norm(spec: ModelSpec) -> _Part:
    return _Part("model.norm.weight", (spec.hidden_size,))


def _head(spec: ModelSpec) -> _Part:
    return _Part("lm_head.weight", (spec.vocab_size, spec.hidden_size))


def _known_names(spec: ModelSpec) -> set[str]:
    known = {_embedding(spec).name, _final_norm(spec).name, _head(spec).name}
    for index in range(spec.num_layers):
        norms, groups = _layer_parts(spec, f"model.layers.{index}")
        known.update(part.name for part in chain(norms, *groups))
    return known


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

    def refuse_unknown(self, spec: ModelSpec) -> None:
        """A tensor nobody asks for (a bias, an adapter) would change the model's answers."""
        for name in sorted(self._where.keys() - _known_names(spec)):
            if not name.endswith("rotary_emb.inv_freq"):  # old checkpoints; follows from config
                raise ConfigurationError(f"{self._folder}: tensor {name} is not known in a Llama")

    def read(self, part: _Part) -> torch.Tensor:
        if part.name not in self._where:
            raise ConfigurationError(f"{self._folder}: tensor {part.name} is missing")
        tensor: torch.Tensor = self._where[part.name].get_tensor(part.name)
        if not tensor.is_floating_point():
            raise ConfigurationError(
                f"{self._folder}: tensor {part.name} is {tensor.dtype}, expected a float type"
            )
        if tuple(tensor.shape) != part.shape:
            raise ConfigurationError(
                f"{self._folder}: tensor {part.name} has shape {list(tensor.shape)}, "
                f"expected {list(part.shape)}"
            )
        return tensor


class _Dummy:
    """Random weights; each tensor depends on the seed and its own name only."""

    def __init__(self, seed: int, deviation: float) -> None:
        self._seed = seed
        self._deviation = deviation

    def read(self, part: _Part) -> torch.Tensor:
        if len(part.shape) == 1:
            return torch.ones(part.shape)
        digest = hashlib.sha256(f"{self._seed}\0{part.name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        return torch.empty(part.shape).normal_(0, self._deviation, generator=generator)
