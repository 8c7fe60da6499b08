"""The KV-cache as rows of memory: one allocation, seen by blocks and by slots.

kv: (num_blocks, layers, 2, kv_heads, block_size, head_dim), contiguous; or, quantised,
    (num_blocks, layers, 2, kv_heads, bytes): the codes of all slots, then the scales of all slots

    block row  ((block * layers + layer) * 2 + k_or_v) * kv_heads + head    one head of a block
    slot row   block row * block_size + slot                                head_dim elements

Rows of layer n are rows of layer 0 in the memory that starts one layer's stride later, so index
tensors are built once a step, for layer 0, and each layer looks at the cache through its own view.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from segue.kernels.quantization import CodeFormat, ScaledRows, decode, quantize
from segue.kernels.scales import SCALE_BYTES


@dataclass(frozen=True, slots=True)
class CacheShape:
    num_blocks: int
    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    codes: CodeFormat | None = None  # None: elements are stored as they are computed

    def __post_init__(self) -> None:
        if self.codes and self.head_dim % SCALE_BYTES:
            raise ValueError(
                f"head_dim {self.head_dim} is not a multiple of {SCALE_BYTES}: the scales behind "
                f"{self.codes.name} codes would not be aligned"
            )

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The dimensions of the tensor; [2] tells keys (0) from values (1)."""
        outer = (self.num_blocks, self.num_layers, 2, self.num_kv_heads)
        if self.codes is None:
            return (*outer, self.block_size, self.head_dim)
        return (*outer, self.block_size * (self.head_dim + SCALE_BYTES))

    def block_rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """Layer 0's block rows of `blocks` (...): (..., 2, kv_heads)."""
        first = blocks[..., None, None] * (self.num_layers * 2 * self.num_kv_heads)
        return first + torch.arange(2 * self.num_kv_heads).view(2, self.num_kv_heads)

    def slot_rows(self, blocks: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Layer 0's slot rows of one slot in each block (...): (..., 2, kv_heads)."""
        return self.block_rows(blocks) * self.block_size + slots[..., None, None]


class LayerCache(Protocol):
    """The cache from one layer on; index it with layer 0's rows."""

    def write(self, slot_rows: torch.Tensor, values: torch.Tensor) -> None:
        """Store `values` (n, head_dim) at `slot_rows` (n,); no other byte changes."""
        ...

    def gather(self, block_rows: torch.Tensor) -> ScaledRows:
        """What lies at `block_rows` (n,), garbage included: n * block_size rows."""
        ...

    def value_table(self, block_rows: torch.Tensor) -> ScaledRows:
        """The rows that a generation's `value_rows` index: all, or those of `block_rows`."""
        ...


@dataclass(frozen=True, slots=True)
class PlainLayer:
    """Elements as they were computed."""

    blocks: torch.Tensor  # (block rows, block_size * head_dim)
    slots: torch.Tensor  # (slot rows, head_dim)

    def write(self, slot_rows: torch.Tensor, values: torch.Tensor) -> None:
        self.slots.index_copy_(0, slot_rows, values)

    def gather(self, block_rows: torch.Tensor) -> ScaledRows:
        taken = self.blocks.index_select(0, block_rows)
        return ScaledRows(taken.view(-1, self.slots.shape[1]))

    def value_table(self, block_rows: torch.Tensor) -> ScaledRows:
        """The cache itself, so that values need not be copied out of it."""
        return ScaledRows(self.slots)


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """Behind the codes of a head their scales."""

    format: CodeFormat
    blocks: torch.Tensor  # uint8 (block rows, bytes)
    codes: torch.Tensor  # int32 (block rows, block_size, head_dim / 4): four codes a word
    scales: torch.Tensor  # float32 (block rows, block_size)

    def write(self, slot_rows: torch.Tensor, values: torch.Tensor) -> None:
        codes, scales = quantize(values, self.format)
        block_size = self.scales.shape[1]
        where = slot_rows // block_size, slot_rows % block_size
        self.codes.index_put_(where, codes.view(torch.int32))
        self.scales.index_put_(where, scales)

    def gather(self, block_rows: torch.Tensor) -> ScaledRows:
        taken = self.blocks.index_select(0, block_rows)
        block_size = self.scales.shape[1]
        end = taken.shape[1] - block_size * SCALE_BYTES
        codes = taken[:, :end].view(len(taken), block_size, -1)
        return decode(codes, taken[:, end:].view(torch.float32), self.format)

    def value_table(self, block_rows: torch.Tensor) -> ScaledRows:
        return self.gather(block_rows)


class PagedCache:
    """Views of one KV tensor of `shape.dimensions`, one for each layer."""

    def __init__(self, kv: torch.Tensor, shape: CacheShape) -> None:
        if tuple(kv.shape) != shape.dimensions:
            raise ValueError(f"a tensor of {tuple(kv.shape)} is not a cache of {shape.dimensions}")
        self.shape = shape
        layer_from = _plain_layers(kv, shape) if shape.codes is None else _coded_layers(kv, shape)
        stride = 2 * shape.num_kv_heads
        self.layers: tuple[LayerCache, ...] = tuple(
            layer_from(layer * stride) for layer in range(shape.num_layers)
        )


def _plain_layers(kv: torch.Tensor, shape: CacheShape) -> Callable[[int], LayerCache]:
    blocks = kv.view(-1, shape.block_size * shape.head_dim)
    slots = kv.view(-1, shape.head_dim)
    return lambda row: PlainLayer(blocks[row:], slots[row * shape.block_size :])


def _coded_layers(kv: torch.Tensor, shape: CacheShape) -> Callable[[int], LayerCache]:
    codes = shape.codes
    assert codes is not None
    blocks = kv.view(-1, shape.dimensions[-1])
    end = shape.block_size * shape.head_dim
    words = blocks[:, :end].view(torch.int32).view(len(blocks), shape.block_size, -1)
    scales = blocks[:, end:].view(torch.float32)
    return lambda row: QuantizedLayer(codes, blocks[row:], words[row:], scales[row:])
