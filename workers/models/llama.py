"""The Llama forward pass over one packed step, without any knowledge of requests."""

import math

import torch
from torch.nn import functional

from segue.kernels.dispatch import KernelSet
from segue.kernels.paged_attention import AttentionPlan
from segue.kernels.paged_cache import LayerCache, PagedCache
from segue.kernels.rope import Rotation, rotation
from segue.workers.models.layer_clock import LayerClock
from segue.workers.models.spec import Llama3Scaling, ModelSpec
from segue.workers.models.step import StepTensors
from segue.workers.models.weights import LayerWeights, ModelWeights


class Llama:
    """Stateless between steps: all it remembers of a sequence lies in the cache."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights, kernels: KernelSet) -> None:
        self._spec = spec
        self._weights = weights
        self._kernels = kernels
        device = weights.embedding.device
        self._frequencies = rope_frequencies(spec).to(device)

    def forward(
        self, step: StepTensors, cache: PagedCache, clock: LayerClock | None = None
    ) -> torch.Tensor:
        """Write the step's keys and values; return the logits of its sampled tokens."""
        weights, norm, epsilon = self._weights, self._kernels.rms_norm, self._spec.rms_norm_eps
        hidden = functional.embedding(step.token_ids, weights.embedding)
        angles = rotation(step.positions, self._frequencies, hidden.dtype)
        layers = zip(weights.layers, cache.layers, strict=True)
        for number, (layer, layer_cache) in enumerate(layers, 1):
            normed = norm(hidden, layer.input_norm, epsilon)
            hidden += self._attention(normed, layer, layer_cache, angles, step.plan)
            normed = norm(hidden, layer.post_attention_norm, epsilon)
            hidden += self._feed_forward(normed, layer)
            if clock is not None:
                clock.passed(number)
        wanted = norm(hidden.index_select(0, step.sampled), weights.final_norm, epsilon)
        return self._kernels.linear(wanted, weights.head)

    def _attention(
        self,
        normed: torch.Tensor,
        layer: LayerWeights,
        cache: LayerCache,
        angles: Rotation,
        plan: AttentionPlan,
    ) -> torch.Tensor:
        spec, kernels = self._spec, self._kernels
        heads, kv_heads = spec.num_heads, spec.num_kv_heads
        projected = kernels.linear(normed, layer.qkv).view(len(normed), -1, spec.head_dim)
        kernels.rotate(projected[:, : heads + kv_heads], angles)
        query, keys_values = projected[:, :heads], projected[:, heads:]
        kernels.store(cache, keys_values.view(len(normed), 2, kv_heads, -1), plan)
        attended = torch.empty_like(query, memory_format=torch.contiguous_format)
        for piece in plan.contexts:
            span = slice(piece.first_token, piece.last_token)
            attended[span] = kernels.context_attention(query[span], cache, piece, kv_heads)
        for group in plan.generations:
            asking = query.index_select(0, group.tokens)
            answers = kernels.generation_attention(asking, cache, group, kv_heads)
            attended.index_copy_(0, group.tokens, answers)
        return kernels.linear(attended.flatten(1), layer.attention_output)

    def _feed_forward(self, normed: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        linear = self._kernels.linear
        gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
        return linear(functional.silu(gate).mul_(up), layer.down)


def rope_frequencies(spec: ModelSpec) -> torch.Tensor:
    """Radians a position adds to each pair of elements of a head: float32 (head_dim / 2,)."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    frequencies = 1.0 / (spec.rope_theta**exponents)
    return frequencies if spec.rope_scaling is None else _stretch(frequencies, spec.rope_scaling)


def _stretch(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Divide long wavelengths by `factor`, keep short ones, and blend in between."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return frequencies * ((1.0 - kept) / scaling.factor + kept)
