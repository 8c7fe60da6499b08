"""Matrix products with fixed weights: the torch reference, and oneDNN's packed layout on a CPU.

Packing reorders a weight once, at load. Measured with one thread at 16 rows it halves the time of
a product; and a row's result no longer depends, bit by bit, on how many rows stand beside it, so
a step gives an answer the same token alone and in company. The reference promises no such thing.
"""

from typing import Any

import torch
from torch.nn import functional

_PACKED_FOR_ROWS = 16  # a hint: fast from 1 to 128 rows


def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """The reference keeps a weight (outputs, inputs) as it is."""
    return weight


def linear(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`rows` (n, inputs) times the transpose of `weight`: (n, outputs)."""
    return functional.linear(rows, weight)


def pack_weight_cpu(weight: torch.Tensor) -> torch.Tensor:
    """An opaque tensor for `linear_cpu`, or `weight` itself where oneDNN cannot pack it.

    Half precision that this CPU's oneDNN does not know is left to torch's own loops: slow, and
    they add up each row by itself, too.
    """
    if not _packable(weight.dtype):
        return weight
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
    return packed


def _packable(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def linear_cpu(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if not weight.is_mkldnn:
        return functional.linear(rows, weight)
    count = len(rows)
    if count == 0:
        return rows.new_empty(0, weight.shape[0])
    # One row would take oneDNN's matrix-vector path, which adds up in another order.
    wide = rows.expand(2, -1).contiguous() if count == 1 else rows
    no_arguments: list[Any] = []
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
        wide, weight, None, "none", no_arguments, ""
    )
    return product[:count]
