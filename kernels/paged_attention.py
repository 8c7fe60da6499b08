"""Attention over the paged KV-cache: the torch reference, which is also the CPU kernel.

A cache slot that was never written, or belongs to somebody else, may hold anything, NaN included,
and 0 * NaN is NaN. So a position beyond a sequence's end never enters a product: context slices
cut it off; generations mask its score, and read their own position 0 in place of its value.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from segue.kernels.paged_cache import CacheShape, LayerCache


@dataclass(frozen=True, slots=True)
class ContextSlice:
    """Tokens [first_token, last_token) of the step, the last of them at position length - 1."""

    first_token: int
    last_token: int
    length: int
    rows: torch.Tensor  # block rows, (2, kv_heads, blocks) flat
    visible: torch.Tensor  # bool (tokens, length)


@dataclass(frozen=True, slots=True)
class GenerationGroup:
    """One token each of sequences of similar length, padded to `padded_length` positions."""

    tokens: torch.Tensor  # (sequences,) indices into the step
    padded_length: int
    key_rows: torch.Tensor  # block rows, (sequences, kv_heads, blocks) flat
    hidden: torch.Tensor  # bool (sequences, 1, 1, positions): beyond the end
    value_rows: torch.Tensor  # slot rows, (sequences, heads, positions) flat
    value_offsets: torch.Tensor  # where each (sequence, head) begins in value_rows


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Everything about a step that attention needs, built once and used by every layer."""

    write_rows: torch.Tensor  # slot rows, (tokens, 2, kv_heads) flat
    contexts: tuple[ContextSlice, ...]
    generations: tuple[GenerationGroup, ...]


def plan_context(
    shape: CacheShape, blocks: torch.Tensor, first_token: int, num_tokens: int, length: int
) -> ContextSlice:
    """`blocks`: those that hold positions [0, length), in order."""
    ends = torch.arange(length - num_tokens, length)
    return ContextSlice(
        first_token=first_token,
        last_token=first_token + num_tokens,
        length=length,
        rows=shape.block_rows(blocks).permute(1, 2, 0).reshape(-1),
        visible=torch.arange(length) <= ends.unsqueeze(1),
    )


def plan_generations(
    shape: CacheShape,
    blocks: torch.Tensor,
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    num_heads: int,
) -> GenerationGroup:
    """`blocks` (sequences, n): padded with any valid block; `lengths`: the new token included."""
    sequences, num_blocks = blocks.shape
    padded_length = num_blocks * shape.block_size
    positions = torch.arange(padded_length)
    hidden = positions >= lengths.unsqueeze(1)
    own = torch.where(hidden, 0, positions)
    slots = own % shape.block_size
    value_rows = shape.slot_rows(blocks.gather(1, own // shape.block_size), slots)[..., 1, :]
    per_head = value_rows.permute(0, 2, 1).repeat_interleave(num_heads // shape.num_kv_heads, 1)
    return GenerationGroup(
        tokens=tokens,
        padded_length=padded_length,
        key_rows=shape.block_rows(blocks)[..., 0, :].permute(0, 2, 1).reshape(-1),
        hidden=hidden.view(sequences, 1, 1, padded_length),
        value_rows=per_head.reshape(-1),
        value_offsets=torch.arange(sequences * num_heads) * padded_length,
    )


def store(layer: LayerCache, keys_values: torch.Tensor, plan: AttentionPlan) -> None:
    """Write the step's keys and values (tokens, 2, kv_heads, head_dim) where they belong."""
    layer.slot_rows.index_copy_(0, plan.write_rows, keys_values.flatten(0, 2))


def context_attention(
    query: torch.Tensor, layer: LayerCache, piece: ContextSlice, num_kv_heads: int
) -> torch.Tensor:
    """Attend from (tokens, heads, head_dim) to all positions up to each token's own."""
    head_dim = query.shape[-1]
    gathered = layer.block_rows.index_select(0, piece.rows)
    keys, values = gathered.view(2, 1, num_kv_heads, -1, head_dim)[..., : piece.length, :]
    attended = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=piece.visible, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def generation_attention(
    query: torch.Tensor, layer: LayerCache, group: GenerationGroup, num_kv_heads: int
) -> torch.Tensor:
    """Attend from one token of each sequence, (sequences, heads, head_dim), to all it has.

    The heads that share keys are rows of one small matrix, so keys are never repeated; values are
    summed straight out of the cache, which on a CPU halves what is copied.
    """
    sequences, heads, head_dim = query.shape
    gathered = layer.block_rows.index_select(0, group.key_rows)
    keys = gathered.view(sequences, num_kv_heads, group.padded_length, head_dim)
    folded = query.view(sequences, num_kv_heads, heads // num_kv_heads, head_dim)
    scores = torch.matmul(folded * head_dim**-0.5, keys.transpose(2, 3))
    scores.masked_fill_(group.hidden, float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    summed = functional.embedding_bag(
        group.value_rows,
        layer.slot_rows,
        group.value_offsets,
        mode="sum",
        per_sample_weights=weights.view(-1),
    )
    return summed.view(sequences, heads, head_dim)
