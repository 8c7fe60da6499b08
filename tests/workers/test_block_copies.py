"""Block copies on real KV memory, against the same operations in thought."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.workers.block_copies import BlockCopier
from segue.workers.device_work import HostWork
from segue.workers.kvcache.block_operations import (
    BlockOperation,
    CopyBlock,
    OffloadBlock,
    OnboardBlock,
)

BLOCKS, SLOTS, SIZE = 5, 3, 4
blocks, slots = st.integers(0, BLOCKS - 1), st.integers(0, SLOTS - 1)
operations = st.one_of(
    st.builds(CopyBlock, blocks, blocks, st.integers(1, SIZE)),
    st.builds(OffloadBlock, blocks, slots),
    st.builds(OnboardBlock, slots, blocks),
)


def kv_memory(dtype: torch.dtype) -> torch.Tensor:
    """(blocks, layers, keys and values, heads, slots, head_dim), each element different."""
    shape = (BLOCKS, 2, 2, 1, SIZE, 2)
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 250).to(dtype).reshape(shape)


@settings(deadline=None)
@given(st.lists(operations, max_size=12), st.sampled_from([torch.float32, torch.uint8]))
def test_operations_run_in_their_order(ordered: list[BlockOperation], dtype: torch.dtype) -> None:
    memory = kv_memory(dtype)
    device = [memory[block].clone() for block in range(BLOCKS)]
    host = [torch.zeros_like(device[0]) for _ in range(SLOTS)]
    copier = BlockCopier(memory, SLOTS, HostWork())
    fill = [OffloadBlock(0, slot) for slot in range(SLOTS)]
    copier.run([*fill, *ordered])
    for operation in (*fill, *ordered):
        match operation:
            case CopyBlock(source, target, _):
                device[target] = device[source].clone()
            case OffloadBlock(block_id, slot):
                host[slot] = device[block_id].clone()
            case OnboardBlock(slot, block_id):
                device[block_id] = host[slot].clone()
    assert all(torch.equal(memory[block], device[block]) for block in range(BLOCKS))


def test_no_host_tier_takes_no_memory() -> None:
    copier = BlockCopier(kv_memory(torch.float32), 0, HostWork())
    with pytest.raises(IndexError):
        copier.run([OffloadBlock(0, 0)])
