"""Rotary position embedding: the torch reference, which is also the CPU kernel."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles of a step's tokens: cosine, and sine with its first half negated.

    Both are (tokens, 1, head_dim), so that they broadcast over heads.
    """

    cosine: torch.Tensor
    signed_sine: torch.Tensor


def rotation(positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """Angles for `positions` (tokens,) and float32 `frequencies` (head_dim / 2,)."""
    angles = positions.to(torch.float32).unsqueeze(1) * frequencies
    cosine, sine = angles.cos(), angles.sin()
    return Rotation(
        cosine=torch.cat((cosine, cosine), dim=1).unsqueeze(1).to(dtype),
        signed_sine=torch.cat((-sine, sine), dim=1).unsqueeze(1).to(dtype),
    )


def rotate(heads: torch.Tensor, angles: Rotation) -> None:
    """Rotate `heads` (tokens, heads, head_dim) in place: element i pairs with i + head_dim / 2."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(angles.cosine).addcmul_(swapped, angles.signed_sine)
