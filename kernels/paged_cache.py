"""The KV-cache as rows of memory: one allocation, seen by blocks and by slots.

kv: (num_blocks, layers, 2, kv_heads, block_size, head_dim), contiguous

    block row  ((block * layers + layer) * 2 + k_or_v) * kv_heads + head    block_size * head_dim
    slot row   block row * block_size + slot                                head_dim

Rows of layer n are rows of layer 0 in the memory that starts one layer's stride later, so index
tensors are built once a step, for layer 0, and each layer looks at the cache through its own view.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CacheShape:
    num_blocks: int
    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The dimensions of the tensor; [2] tells keys (0) from values (1)."""
        heads = (self.num_kv_heads, self.block_size, self.head_dim)
        return (self.num_blocks, self.num_layers, 2, *heads)

    def block_rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """Layer 0's block rows of `blocks` (...): (..., 2, kv_heads)."""
        first = blocks[..., None, None] * (self.num_layers * 2 * self.num_kv_heads)
        return first + torch.arange(2 * self.num_kv_heads).view(2, self.num_kv_heads)

    def slot_rows(self, blocks: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Layer 0's slot rows of one slot in each block (...): (..., 2, kv_heads)."""
        return self.block_rows(blocks) * self.block_size + slots[..., None, None]


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache from one layer on; index it with layer 0's rows."""

    block_rows: torch.Tensor
    slot_rows: torch.Tensor


class PagedCache:
    """Views of one KV tensor, one for each layer."""

    def __init__(self, kv: torch.Tensor) -> None:
        num_blocks, num_layers, _, num_kv_heads, block_size, head_dim = kv.shape
        self.shape = CacheShape(num_blocks, num_layers, num_kv_heads, block_size, head_dim)
        blocks, slots = kv.view(-1, block_size * head_dim), kv.view(-1, head_dim)
        stride = 2 * num_kv_heads
        self.layers = tuple(
            LayerCache(blocks[layer * stride :], slots[layer * stride * block_size :])
            for layer in range(num_layers)
        )
