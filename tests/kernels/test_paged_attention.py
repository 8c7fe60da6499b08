"""Paged attention against dense attention, one token at a time, over caches full of garbage.

Of a quantised cache dense attention gets what torch itself makes of the codes and scales.
"""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.kernels.dispatch import CPU, REFERENCE, KernelSet, kernels_for
from segue.kernels.paged_attention import AttentionPlan, plan_context, plan_generations
from segue.kernels.paged_cache import CacheShape, PagedCache
from segue.kernels.quantization import FP8_E4M3, INT8, CodeFormat, quantize

LAYERS, KV_HEADS, GROUP, BLOCK_SIZE, HEAD_DIM = 3, 2, 3, 4, 8
HEADS = KV_HEADS * GROUP
KERNELS = pytest.mark.parametrize("kernels", [REFERENCE, CPU], ids=["reference", "cpu"])
CODES = pytest.mark.parametrize("codes", [None, FP8_E4M3, INT8], ids=["plain", "fp8", "int8"])


def dense_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One token (heads, head_dim) over (length, kv_heads, head_dim), head by head in float64."""
    result = torch.empty_like(query)
    for head in range(HEADS):
        own_keys = keys[:, head // GROUP].double()
        scores = own_keys @ query[head].double() / math.sqrt(HEAD_DIM)
        result[head] = (scores.softmax(0) @ values[:, head // GROUP].double()).to(query.dtype)
    return result


def read_back(values: torch.Tensor, codes: CodeFormat | None) -> torch.Tensor:
    """What a cache of `codes` makes of `values`."""
    if codes is None:
        return values
    written, scales = quantize(values, codes)
    return written.view(codes.code).float() * scales.unsqueeze(-1)


class World:
    """Sequences in a cache whose every other slot holds NaN or infinity."""

    def __init__(self, lengths: list[int], seed: int, codes: CodeFormat | None = None) -> None:
        self.lengths = lengths
        self.codes = codes
        generator = torch.Generator().manual_seed(seed)
        needed = [-(-length // BLOCK_SIZE) for length in lengths]
        free = list(range(sum(needed) + 3))
        random.Random(seed).shuffle(free)
        self.tables = [[free.pop() for _ in range(count)] for count in needed]
        shape = CacheShape(sum(needed) + 3, LAYERS, KV_HEADS, BLOCK_SIZE, HEAD_DIM, codes)
        self.kv = self.garbage(shape)
        self.cache = PagedCache(self.kv, shape)
        self.keys_values = [
            torch.randn(LAYERS, length, 2, KV_HEADS, HEAD_DIM, generator=generator)
            for length in lengths
        ]
        self.queries = [
            torch.randn(LAYERS, length, HEADS, HEAD_DIM, generator=generator) for length in lengths
        ]

    @staticmethod
    def garbage(shape: CacheShape) -> torch.Tensor:
        """NaN and, in every second block, infinity: as elements; as codes and as scales."""
        if shape.codes is None:
            kv = torch.full(shape.dimensions, math.nan)
            kv[::2] = math.inf
            return kv
        kv = torch.full(shape.dimensions, 0xFF, dtype=torch.uint8)  # -NaN, as FP8 and as float32
        kv[::2, ..., : BLOCK_SIZE * HEAD_DIM] = 0x7F  # NaN of the other sign
        kv[::2, ..., BLOCK_SIZE * HEAD_DIM :].view(torch.float32).fill_(math.inf)
        return kv

    def plan(self) -> AttentionPlan:
        """All tokens of all sequences as one step of context slices."""
        blocks = [
            self.tables[index][position // BLOCK_SIZE]
            for index, length in enumerate(self.lengths)
            for position in range(length)
        ]
        slots = [p % BLOCK_SIZE for length in self.lengths for p in range(length)]
        rows = self.cache.shape.slot_rows(torch.tensor(blocks), torch.tensor(slots))
        return AttentionPlan(rows.reshape(-1), (), ())

    def store(self, kernels: KernelSet, layer: int) -> None:
        packed = torch.cat([keys_values[layer] for keys_values in self.keys_values])
        kernels.store(self.cache.layers[layer], packed, self.plan())

    def expected(self, index: int, layer: int, position: int) -> torch.Tensor:
        known = read_back(self.keys_values[index][layer, : position + 1], self.codes)
        return dense_attention(self.queries[index][layer, position], known[:, 0], known[:, 1])


@KERNELS
@CODES
@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 21), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_generations_match_dense_attention(
    kernels: KernelSet, codes: CodeFormat | None, lengths: list[int], seed: int
) -> None:
    world = World(lengths, seed, codes)
    layer = seed % LAYERS
    world.store(kernels, layer)
    widest = max(map(len, world.tables))
    blocks = torch.tensor([table + table[:1] * (widest - len(table)) for table in world.tables])
    tokens = torch.arange(len(lengths))
    shape = world.cache.shape
    group = plan_generations(shape, blocks, tokens, torch.tensor(lengths), HEADS)
    query = torch.stack([queries[layer, -1] for queries in world.queries])
    got = kernels.generation_attention(query, world.cache.layers[layer], group, KV_HEADS)
    wanted = torch.stack(
        [world.expected(index, layer, length - 1) for index, length in enumerate(lengths)]
    )
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@KERNELS
@CODES
@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 30), data=st.data())
def test_a_context_slice_matches_dense_attention(
    kernels: KernelSet, codes: CodeFormat | None, length: int, data: st.DataObject
) -> None:
    num_tokens = data.draw(st.integers(1, length))
    world = World([length], length, codes)
    layer = length % LAYERS
    world.store(kernels, layer)
    blocks = torch.tensor(world.tables[0])
    piece = plan_context(world.cache.shape, blocks, 0, num_tokens, length)
    query = world.queries[0][layer, length - num_tokens :]
    got = kernels.context_attention(query, world.cache.layers[layer], piece, KV_HEADS)
    wanted = [world.expected(0, layer, position) for position in range(length - num_tokens, length)]
    torch.testing.assert_close(got, torch.stack(wanted), atol=1e-5, rtol=1e-5)


def test_store_writes_its_slots_and_nothing_else() -> None:
    world = World([6], seed=1)
    before = world.kv.clone()
    world.store(REFERENCE, layer=1)
    for position in range(6):
        block, slot = world.tables[0][position // BLOCK_SIZE], position % BLOCK_SIZE
        wanted = world.keys_values[0][1, position]
        assert torch.equal(world.kv[block, 1, :, :, slot], wanted)
        before[block, 1, :, :, slot] = wanted
    assert torch.equal(world.kv.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("codes", [FP8_E4M3, INT8], ids=["fp8", "int8"])
@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_quantised_token_changes_its_own_codes_and_scales_alone(
    codes: CodeFormat, length: int, seed: int
) -> None:
    """So a block is never quantised again, and a partial block may be read while it fills."""
    world = World([length], seed, codes)
    layer, position = seed % LAYERS, length - 1
    block, slot = world.tables[0][position // BLOCK_SIZE], position % BLOCK_SIZE
    before = world.kv.clone()
    written = world.keys_values[0][layer, position]
    rows = world.cache.shape.slot_rows(torch.tensor([block]), torch.tensor([slot]))
    plan = AttentionPlan(rows.reshape(-1), (), ())
    REFERENCE.store(world.cache.layers[layer], written.unsqueeze(0), plan)
    data, scales = quantize(written, codes)
    end = BLOCK_SIZE * HEAD_DIM
    heads = before[block, layer]
    heads[..., slot * HEAD_DIM : (slot + 1) * HEAD_DIM] = data
    heads[..., end + 4 * slot : end + 4 * slot + 4] = scales.unsqueeze(-1).view(torch.uint8)
    assert torch.equal(world.kv, before)


@CODES
def test_a_generation_is_the_same_however_far_its_group_is_padded(
    codes: CodeFormat | None,
) -> None:
    world = World([5, 9, 40], 3, codes)
    world.store(CPU, 0)
    query = torch.stack([queries[0, -1] for queries in world.queries])
    for index, (table, length) in enumerate(zip(world.tables, world.lengths, strict=True)):
        answers = []
        for width in (len(table), len(table) + 1, 3 * len(table)):
            blocks = torch.tensor([table + table[:1] * (width - len(table))])
            ends, asking = torch.tensor([length]), torch.tensor([0])
            group = plan_generations(world.cache.shape, blocks, asking, ends, HEADS)
            mine = query[index : index + 1]
            answers.append(CPU.generation_attention(mine, world.cache.layers[0], group, KV_HEADS))
        torch.testing.assert_close(answers, answers[:1] * 3, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("codes", [FP8_E4M3, INT8], ids=["fp8", "int8"])
def test_queries_in_half_precision_read_a_quantised_cache(
    codes: CodeFormat, dtype: torch.dtype
) -> None:
    world = World([11], 2, codes)
    world.store(REFERENCE, 0)
    blocks, shape, layer = torch.tensor(world.tables[0]), world.cache.shape, world.cache.layers[0]
    piece = plan_context(shape, blocks, 0, 2, 11)
    lengths, tokens = torch.tensor([11]), torch.tensor([0])
    group = plan_generations(shape, blocks.unsqueeze(0), tokens, lengths, HEADS)
    query = world.queries[0][0, 9:].to(dtype)
    context = REFERENCE.context_attention(query, layer, piece, KV_HEADS)
    generation = REFERENCE.generation_attention(query[1:], layer, group, KV_HEADS)
    assert (context.dtype, generation.dtype) == (dtype, dtype)
    wanted = world.expected(0, 0, 10)
    for got in (context[1], generation[0]):
        torch.testing.assert_close(got.float(), wanted, atol=2e-2, rtol=2e-2)


def test_a_tensor_of_another_shape_is_no_cache() -> None:
    shape = CacheShape(2, LAYERS, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    with pytest.raises(ValueError, match="is not a cache of"):
        PagedCache(torch.empty(3, *shape.dimensions[1:]), shape)


def test_an_unknown_device_has_no_kernels() -> None:
    with pytest.raises(ValueError, match="meta"):
        kernels_for(torch.device("meta"))
