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
    value_block_rows: torch.Tensor  # block rows, (sequences, kv_heads, blocks) flat
    value_rows: torch.Tensor  # rows of the value table, (sequences, heads, positions) flat
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
    block_rows = shape.block_rows(blocks).permute(2, 0, 3, 1)
    value_rows = _value_rows(shape, blocks, own, padded_length)
    per_head = value_rows.repeat_interleave(num_heads // shape.num_kv_heads, 1)
    return GenerationGroup(
        tokens=tokens,
        padded_length=padded_length,
        key_rows=block_rows[0].reshape(-1),
        hidden=hidden.view(sequences, 1, 1, padded_length),
        value_block_rows=block_rows[1].reshape(-1),
        value_rows=per_head.reshape(-1),
        value_offsets=torch.arange(sequences * num_heads) * padded_length,
    )


def continue_generations(
    shape: CacheShape, group: GenerationGroup, blocks: torch.Tensor, positions: torch.Tensor
) -> None:
    """Every sequence goes on to the next of its `positions` (sequences,), which must lie within
    the padded length: the same plan as a new one would be, changed where it differs."""
    sequences = len(positions)
    at = torch.arange(sequences)
    group.hidden.view(sequences, -1)[at, positions] = False
    rows = _value_rows(shape, blocks, positions.unsqueeze(1), group.padded_length).squeeze(2)
    per_sequence = group.value_rows.view(sequences, -1, group.padded_length)
    heads_per_row = per_sequence.shape[1] // shape.num_kv_heads
    per_sequence[at, :, positions] = rows.repeat_interleave(heads_per_row, 1)


def append_block(
    shape: CacheShape, group: GenerationGroup, sequence: int, index: int, block: int
) -> None:
    """Block `index` of one of the group's sequences is `block` from now on."""
    keys, values = shape.block_rows(torch.tensor(block)).unbind()
    sequences = len(group.tokens)
    group.key_rows.view(sequences, shape.num_kv_heads, -1)[sequence, :, index] = keys
    group.value_block_rows.view(sequences, shape.num_kv_heads, -1)[sequence, :, index] = values


def _value_rows(
    shape: CacheShape, blocks: torch.Tensor, own: torch.Tensor, padded_length: int
) -> torch.Tensor:
    """Where the values of positions `own` (sequences, n) are in the value table: (.., kv_heads, n).

    The table is the cache; or, quantised, what was gathered and decoded of this group's blocks.
    """
    if shape.codes is None:
        slots = own % shape.block_size
        rows = shape.slot_rows(blocks.gather(1, own // shape.block_size), slots)
        return rows[..., 1, :].permute(0, 2, 1)
    firsts = torch.arange(len(own) * shape.num_kv_heads) * padded_length
    return firsts.view(len(own), -1, 1) + own.unsqueeze(1)


def store(layer: LayerCache, keys_values: torch.Tensor, plan: AttentionPlan) -> None:
    """Write the step's keys and values (tokens, 2, kv_heads, head_dim) where they belong."""
    layer.write(plan.write_rows, keys_values.flatten(0, 2))


def context_attention(
    query: torch.Tensor, layer: LayerCache, piece: ContextSlice, num_kv_heads: int
) -> torch.Tensor:
    """Attend from (tokens, heads, head_dim) to all positions up to each token's own."""
    head_dim = query.shape[-1]
    gathered = layer.gather(piece.rows).scaled().to(query.dtype)
    keys, values = gathered.view(2, 1, num_kv_heads, -1, head_dim)[..., : piece.length, :]
    attended = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=piece.visible, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def generation_attention(
    query: torch.Tensor, layer: LayerCache, group: GenerationGroup, num_kv_heads: int
) -> torch.Tensor:
    """Attend from one token of each sequence, (sequences, heads, head_dim), to all it has.

    The heads that share keys are rows of one small matrix, so keys are never repeated. Values are
    summed straight out of the cache, which on a CPU halves what is copied; codes are decoded first.
    """
    sequences, heads, head_dim = query.shape
    grid = (sequences, num_kv_heads, -1, group.padded_length)
    keys, values = layer.gather(group.key_rows), layer.value_table(group.value_block_rows)
    folded = (query * head_dim**-0.5).to(keys.values.dtype)
    scores = torch.matmul(
        folded.view(sequences, num_kv_heads, heads // num_kv_heads, head_dim),
        keys.values.view(sequences, num_kv_heads, -1, head_dim).transpose(2, 3),
    )
    if keys.factors is not None:
        scores = scores * keys.factors.view(grid)
    scores.masked_fill_(group.hidden, float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
    if values.factors is not None:
        weights = (weights * values.factors.view(grid)).masked_fill_(group.hidden, 0.0)
    summed = functional.embedding_bag(
        group.value_rows,
        values.values,
        group.value_offsets,
        mode="sum",
        per_sample_weights=weights.to(values.values.dtype).view(-1),
    )
    return summed.to(query.dtype).view(sequences, heads, head_dim)
