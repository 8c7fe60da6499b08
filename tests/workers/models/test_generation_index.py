"""Rows of a generation batch against the same step in slices, while sequences come and go."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from engine_parts import make_sequence
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.kernels.paged_attention import GenerationGroup
from segue.kernels.paged_cache import CacheShape
from segue.kernels.quantization import CODE_FORMATS
from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.generation_batch import GenerationBatch
from segue.workers.models.step import StepIndex, StepTensors
from segue.workers.sequence import Sequence

BLOCK, HEADS = 4, 6
PLAIN = CacheShape(512, 2, 3, BLOCK, 8)
CODED = CacheShape(512, 2, 3, BLOCK, 8, CODE_FORMATS["int8"])
CONTEXT = SequenceSlice([1, 2, 3], 0, [500], True)


def ready(number: int, num_tokens: int, blocks: list[int]) -> Sequence:
    sequence = make_sequence(str(number), range(num_tokens - 1), 500)
    sequence.num_computed = len(sequence.tokens)
    sequence.tokens.append(1)
    sequence.block_ids = [blocks.pop() for _ in range(-(-(num_tokens - 1) // BLOCK))]
    return sequence


def grow(batch: GenerationBatch, blocks: list[int]) -> None:
    for sequence in batch.beginning():
        if len(sequence.block_ids) * BLOCK <= sequence.num_computed:
            sequence.block_ids.append(blocks.pop())
        batch.grow(sequence)


def attended(shape: CacheShape, group: GenerationGroup) -> dict[int, tuple[object, ...]]:
    """By token: what it sees, and which key and value rows stand behind that."""
    count = len(group.tokens)
    visible = ~group.hidden.view(count, -1)
    keys = group.key_rows.view(count, shape.num_kv_heads, -1)
    value_blocks = group.value_block_rows.view(count, shape.num_kv_heads, -1)
    values = group.value_rows.view(count, HEADS, -1)
    found: dict[int, tuple[object, ...]] = {}
    for place, token in enumerate(group.tokens.tolist()):
        length = int(visible[place].sum())
        assert visible[place, :length].all(), "what is seen is a prefix"
        used = -(-length // BLOCK)
        own = values[place, :, :length]
        if shape.codes is not None:  # counted from the sequence's own place in the group
            own = own - (torch.arange(HEADS) // (HEADS // 3) + place * 3).view(-1, 1) * (
                group.padded_length
            )
        found[token] = (
            length,
            keys[place, :, :used].tolist(),
            value_blocks[place, :, :used].tolist(),
            own.tolist(),
        )
    return found


def assert_same(shape: CacheShape, rows: StepTensors, slices: StepTensors) -> None:
    for name in ("token_ids", "positions", "sampled"):
        assert torch.equal(getattr(rows, name), getattr(slices, name)), name
    assert torch.equal(rows.plan.write_rows, slices.plan.write_rows)
    assert len(rows.plan.contexts) == len(slices.plan.contexts)
    mine: dict[int, tuple[object, ...]] = {}
    theirs: dict[int, tuple[object, ...]] = {}
    for group in rows.plan.generations:
        mine |= attended(shape, group)
    for group in slices.plan.generations:
        theirs |= attended(shape, group)
    assert mine == theirs


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([PLAIN, CODED]))
def test_rows_are_what_slices_would_be(data: st.DataObject, shape: CacheShape) -> None:
    index = StepIndex(shape, num_heads=HEADS, vocab_size=2000)
    blocks = list(range(500))
    batch = GenerationBatch(8, BLOCK)
    names = 0
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["join", "leave", "go on", "go on", "run unseen"]))
        if action == "join" and len(batch) < 8:
            names += 1
            batch.join(ready(names, data.draw(st.integers(2, 60)), blocks))
        elif action == "leave" and len(batch):
            batch.leave(data.draw(st.sampled_from(batch.sequences)))
        if not len(batch):
            continue
        grow(batch, blocks)
        context = (CONTEXT,) if data.draw(st.booleans()) else ()
        step = PackedBatch(context, len(context), batch)
        if action != "run unseen":
            fresh = StepIndex(shape, num_heads=HEADS, vocab_size=2000)
            assert_same(shape, index.tensors(step), fresh.tensors(step.in_slices()))
        batch.advance(np.full(len(batch), 7))


def test_tensors_are_changed_in_place_while_nothing_else_changes() -> None:
    index = StepIndex(PLAIN, num_heads=HEADS, vocab_size=2000)
    blocks = list(range(500))
    batch = GenerationBatch(8, BLOCK)
    batch.join(ready(1, 41, blocks))  # the widest: at position 40, it begins a block at once
    batch.join(ready(2, 31, blocks))
    where: set[tuple[int, ...]] = set()
    for _ in range(BLOCK):
        grow(batch, blocks)
        (group,) = index.tensors(PackedBatch((), 0, batch)).plan.generations
        kept = [f.name for f in fields(group) if f.name not in ("tokens", "padded_length")]
        where.add(tuple(getattr(group, name).data_ptr() for name in kept))
        batch.advance(np.array([5, 6]))
    assert len(where) == 1


def test_a_row_beyond_its_table_is_refused_and_nothing_is_kept() -> None:
    index = StepIndex(PLAIN, num_heads=HEADS, vocab_size=2000)
    batch = GenerationBatch(8, BLOCK)
    batch.join(ready(1, 5, list(range(500))))  # position 4 has no block yet
    with pytest.raises(ValueError, match="beyond its block table"):
        index.tensors(PackedBatch((), 0, batch))
    batch.beginning()[0].block_ids.append(499)
    batch.grow(batch.sequences[0])
    index.tensors(PackedBatch((), 0, batch))
    batch.token_ids[0] = 2000
    with pytest.raises(ValueError, match="token id 2000"):
        index.tensors(PackedBatch((), 0, batch))
