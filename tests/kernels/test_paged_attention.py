"""Paged attention against dense attention, one token at a time, over caches full of garbage."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.kernels.dispatch import CPU, REFERENCE, KernelSet, kernels_for
from segue.kernels.paged_attention import AttentionPlan, plan_context, plan_generations
from segue.kernels.paged_cache import PagedCache

LAYERS, KV_HEADS, GROUP, BLOCK_SIZE, HEAD_DIM = 3, 2, 3, 4, 8
HEADS = KV_HEADS * GROUP


def dense_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One token (heads, head_dim) over (length, kv_heads, head_dim), head by head in float64."""
    result = torch.empty_like(query)
    for head in range(HEADS):
        own_keys = keys[:, head // GROUP].double()
        scores = own_keys @ query[head].double() / math.sqrt(HEAD_DIM)
        result[head] = (scores.softmax(0) @ values[:, head // GROUP].double()).to(query.dtype)
    return result


class World:
    """Sequences in a cache whose every other slot holds NaN or infinity."""

    def __init__(self, lengths: list[int], seed: int) -> None:
        self.lengths = lengths
        generator = torch.Generator().manual_seed(seed)
        needed = [-(-length // BLOCK_SIZE) for length in lengths]
        free = list(range(sum(needed) + 3))
        random.Random(seed).shuffle(free)
        self.tables = [[free.pop() for _ in range(count)] for count in needed]
        kv = torch.empty(sum(needed) + 3, LAYERS, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        self.kv = kv.fill_(math.nan)
        self.kv[::2].fill_(math.inf)
        self.cache = PagedCache(self.kv)
        self.keys_values = [
            torch.randn(LAYERS, length, 2, KV_HEADS, HEAD_DIM, generator=generator)
            for length in lengths
        ]
        self.queries = [
            torch.randn(LAYERS, length, HEADS, HEAD_DIM, generator=generator) for length in lengths
        ]

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
        known = self.keys_values[index][layer, : position + 1]
        return dense_attention(self.queries[index][layer, position], known[:, 0], known[:, 1])


@pytest.mark.parametrize("kernels", [REFERENCE, CPU], ids=["reference", "cpu"])
@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 21), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_generations_match_dense_attention(
    kernels: KernelSet, lengths: list[int], seed: int
) -> None:
    world = World(lengths, seed)
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


@pytest.mark.parametrize("kernels", [REFERENCE, CPU], ids=["reference", "cpu"])
@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 30), data=st.data())
def test_a_context_slice_matches_dense_attention(
    kernels: KernelSet, length: int, data: st.DataObject
) -> None:
    num_tokens = data.draw(st.integers(1, length))
    world = World([length], seed=length)
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


def test_an_unknown_device_has_no_kernels() -> None:
    with pytest.raises(ValueError, match="meta"):
        kernels_for(torch.device("meta"))
