"""Eight-bit codes with one float32 scale a row: how keys and values are stored small.

A row is one head's keys, or values, of one token: writing a token never touches another's scale.
Its scale is float32: a float16 scale would itself be subnormal for a row of FP8 whose largest
element is below 0.03, and would need widening before each use; 4 bytes beside 64 or 128 are cheap.
"""

from dataclasses import dataclass

import torch

_SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # so a row of zeros divides by something
_LARGEST = torch.finfo(torch.float32).max * (1 - 2**-23)  # a hair less: rounding must not reach inf


@dataclass(frozen=True, slots=True)
class CodeFormat:
    """One kind of code; `limit` is the largest magnitude it can hold."""

    name: str
    code: torch.dtype
    limit: float


FP8_E4M3 = CodeFormat("fp8_e4m3", torch.float8_e4m3fn, 448.0)
INT8 = CodeFormat("int8", torch.int8, 127.0)
CODE_FORMATS = {each.name: each for each in (FP8_E4M3, INT8)}


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Rows that stand for `values` times `factors`; a product may apply the factors at its end."""

    values: torch.Tensor  # (n, size)
    factors: torch.Tensor | None = None  # float32 (n,); None: all are 1

    def scaled(self) -> torch.Tensor:
        return self.values if self.factors is None else self.values * self.factors.unsqueeze(1)


def quantize(values: torch.Tensor, target: CodeFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (..., size) as uint8 and scales (...,) of `values` (..., size).

    Infinity becomes the largest number there is. A row that holds NaN stays NaN, by its scale.
    """
    wide = values.float()
    largest = wide.abs().amax(dim=-1, keepdim=True)
    scales = largest.div_(target.limit).clamp_(_SMALLEST_SCALE, _LARGEST / target.limit)
    scaled = (wide / scales).clamp_(-target.limit, target.limit)
    if target.code == torch.int8:
        scaled = scaled.round_()
    return scaled.to(target.code).view(torch.uint8), scales.squeeze(-1)


def decode(codes: torch.Tensor, scales: torch.Tensor, source: CodeFormat) -> ScaledRows:
    """What uint8 `codes` (..., size) and `scales` (...,) stand for: (n, size) and (n,).

    The values are finite whatever the bytes are; only a factor can be NaN or infinite.
    """
    if source.code == torch.int8:
        values, unit = codes.view(torch.int8).float(), 1.0
    else:
        # torch converts one element at a time; this is 10 times faster. Seen as float16, a code
        # shifted left by 7 (its sign moved to the top) is its value / 256, subnormal or not, and
        # what FP8 calls NaN is +-480 / 256.
        halves = codes.view(torch.int8).to(torch.int16).mul_(128).bitwise_and_(~0x4000)
        values, unit = halves.view(torch.float16).float(), 256.0
    return ScaledRows(values.flatten(0, -2), (scales * unit).flatten())
