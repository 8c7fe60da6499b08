"""Turns a packed batch into the index tensors of one step, checking it on the way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain, islice
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch

from segue.kernels.paged_attention import (
    AttentionPlan,
    ContextSlice,
    GenerationGroup,
    plan_context,
    plan_generations,
)
from segue.kernels.paged_cache import CacheShape
from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.generation_batch import GenerationBatch
from segue.workers.models.generation_index import GenerationIndex

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepTensors:
    token_ids: torch.Tensor  # (tokens,)
    positions: torch.Tensor  # (tokens,)
    sampled: torch.Tensor  # indices of the tokens whose logits are wanted
    plan: AttentionPlan

    def to(self, device: torch.device) -> Self:
        """The same step on `device`; index tensors are always built on the CPU."""
        return self if device.type == "cpu" else _moved(self, device)


def _moved(value: T, device: torch.device) -> T:
    moved: Any = value
    if isinstance(value, torch.Tensor):
        moved = value.to(device, non_blocking=True)
    elif isinstance(value, tuple):
        moved = tuple(_moved(item, device) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        changes = {item.name: _moved(getattr(value, item.name), device) for item in fields(value)}
        moved = replace(value, **changes)
    return cast(T, moved)


class StepIndex:
    """Builds the index tensors of one step after another; those of rows are kept in between."""

    def __init__(self, shape: CacheShape, *, num_heads: int, vocab_size: int) -> None:
        self._shape = shape
        self._num_heads = num_heads
        self._vocab_size = vocab_size
        self._generations = GenerationIndex(shape, num_heads)

    def tensors(self, batch: PackedBatch) -> StepTensors:
        """Raises ValueError for a batch that does not hold together; nothing is computed then."""
        _check_batch(batch, self._shape)
        if batch.rows is None:
            return self._of_slices(batch)
        rows = self._of_rows(batch.rows, batch.num_slice_tokens)
        return _joined(self._of_slices(batch), rows) if batch.slices else rows

    def _of_slices(self, batch: PackedBatch) -> StepTensors:
        return _slice_tensors(batch, self._shape, self._num_heads, self._vocab_size)

    def _of_rows(self, rows: GenerationBatch, first_token: int) -> StepTensors:
        """Token ids and positions are views: the next step overwrites them."""
        shape, count = self._shape, len(rows)
        positions = rows.positions[:count]
        block_index = positions // shape.block_size
        if (block_index >= rows.num_blocks[:count]).any():
            raise ValueError("a row is beyond its block table")
        token_ids = torch.from_numpy(rows.token_ids[:count])
        blocks = torch.from_numpy(rows.block_tables[np.arange(count), block_index])
        _check_range("token id", token_ids, self._vocab_size)
        _check_range("block id", blocks, shape.num_blocks)
        slots = torch.from_numpy(positions % shape.block_size)
        return StepTensors(
            token_ids=token_ids,
            positions=torch.from_numpy(positions),
            sampled=torch.arange(first_token, first_token + count),
            plan=AttentionPlan(
                write_rows=shape.slot_rows(blocks, slots).reshape(-1),
                contexts=(),
                generations=self._generations.groups(rows, first_token),
            ),
        )


def _joined(slices: StepTensors, rows: StepTensors) -> StepTensors:
    """Tokens of rows come behind those of slices."""
    return StepTensors(
        token_ids=torch.cat((slices.token_ids, rows.token_ids)),
        positions=torch.cat((slices.positions, rows.positions)),
        sampled=torch.cat((slices.sampled, rows.sampled)),
        plan=AttentionPlan(
            write_rows=torch.cat((slices.plan.write_rows, rows.plan.write_rows)),
            contexts=slices.plan.contexts,
            generations=(*slices.plan.generations, *rows.plan.generations),
        ),
    )


def _slice_tensors(
    batch: PackedBatch, shape: CacheShape, num_heads: int, vocab_size: int
) -> StepTensors:
    pieces = batch.slices
    counts = [len(piece.token_ids) for piece in pieces]
    lasts = torch.tensor(counts, dtype=torch.int64).cumsum(0) - 1
    token_ids = torch.tensor(
        list(chain.from_iterable(piece.token_ids for piece in pieces)), dtype=torch.int64
    )
    _check_range("token id", token_ids, vocab_size)
    positions = torch.cat([torch.arange(piece.start, piece.end) for piece in pieces])
    tables = [
        torch.tensor(list(islice(piece.block_ids, _num_blocks(piece.end, shape))))
        for piece in pieces
    ]
    _check_range("block id", torch.cat(tables), shape.num_blocks)
    blocks = torch.cat(
        [
            table[torch.arange(piece.start, piece.end) // shape.block_size]
            for piece, table in zip(pieces, tables, strict=True)
        ]
    )
    firsts = (lasts + 1 - torch.tensor(counts)).tolist()
    cut = batch.num_context
    return StepTensors(
        token_ids=token_ids,
        positions=positions,
        sampled=lasts[torch.tensor([piece.samples for piece in pieces])],
        plan=AttentionPlan(
            write_rows=shape.slot_rows(blocks, positions % shape.block_size).reshape(-1),
            contexts=tuple(_contexts(shape, pieces[:cut], tables, firsts)),
            generations=tuple(
                _generations(shape, pieces[cut:], tables[cut:], firsts[cut:], num_heads)
            ),
        ),
    )


def _num_blocks(length: int, shape: CacheShape) -> int:
    return -(-length // shape.block_size)


def _check_batch(batch: PackedBatch, shape: CacheShape) -> None:
    if not batch.slices and not batch.num_rows:
        raise ValueError("the batch is empty")
    if not 0 <= batch.num_context <= len(batch.slices):
        raise ValueError(f"num_context {batch.num_context} of {len(batch.slices)} slices")
    for index, piece in enumerate(batch.slices):
        if not piece.token_ids or piece.start < 0:
            raise ValueError(f"slice {index} holds no tokens or begins at {piece.start}")
        if len(piece.block_ids) * shape.block_size < piece.end:
            raise ValueError(f"slice {index} ends at {piece.end}, beyond its block table")
        if index >= batch.num_context and (len(piece.token_ids) != 1 or not piece.samples):
            raise ValueError(f"slice {index} is a generation, but not one token that samples")


def _check_range(noun: str, values: torch.Tensor, limit: int) -> None:
    low, high = (int(bound) for bound in values.aminmax())
    if low < 0 or high >= limit:
        raise ValueError(f"{noun} {low if low < 0 else high} is out of range 0..{limit - 1}")


def _contexts(
    shape: CacheShape,
    pieces: Sequence[SequenceSlice],
    tables: Sequence[torch.Tensor],
    firsts: Sequence[int],
) -> Iterator[ContextSlice]:
    for piece, table, first in zip(pieces, tables, firsts, strict=False):
        yield plan_context(shape, table, first, len(piece.token_ids), piece.end)


def _generations(
    shape: CacheShape,
    pieces: Sequence[SequenceSlice],
    tables: Sequence[torch.Tensor],
    firsts: Sequence[int],
    num_heads: int,
) -> Iterator[GenerationGroup]:
    """Group by length, longest first: nobody is padded to more than twice its own blocks.

    So a step costs at most twice its real tokens, in at most log2(longest) groups.
    """
    order = sorted(range(len(pieces)), key=lambda index: len(tables[index]), reverse=True)
    while order:
        widest = len(tables[order[0]])
        group = [index for index in order if 2 * len(tables[index]) > widest]
        order = order[len(group) :]
        blocks = torch.stack([_widen(tables[index], widest) for index in group])
        tokens = torch.tensor([firsts[index] for index in group])
        lengths = torch.tensor([pieces[index].end for index in group])
        yield plan_generations(shape, blocks, tokens, lengths, num_heads)


def _widen(table: torch.Tensor, width: int) -> torch.Tensor:
    return torch.cat((table, table[:1].expand(width - len(table))))
