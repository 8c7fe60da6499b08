"""Codes and scales: how far a number may move, and what zeros, infinities and NaN become."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.kernels.paged_cache import CacheShape
from segue.kernels.quantization import FP8_E4M3, INT8, CodeFormat, decode, quantize

FORMATS = pytest.mark.parametrize("codes", [FP8_E4M3, INT8], ids=["fp8", "int8"])
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
NEAR = st.floats(-8, 8, width=32)
ROWS = st.lists(st.lists(NUMBERS | NEAR, min_size=4, max_size=4), min_size=1, max_size=5)


def read_back(values: torch.Tensor, codes: CodeFormat) -> torch.Tensor:
    return decode(*quantize(values, codes), codes).scaled().view(values.shape)


@FORMATS
@settings(max_examples=300, deadline=None)
@given(rows=ROWS)
def test_a_number_moves_by_half_a_step_at_most(codes: CodeFormat, rows: list[list[float]]) -> None:
    values = torch.tensor(rows)
    data, scales = quantize(values, codes)
    assert data.dtype == torch.uint8 and data.shape == values.shape
    assert scales.dtype == torch.float32 and scales.isfinite().all() and (scales > 0).all()
    step = scales.double().unsqueeze(-1)
    exact = values.double()
    if codes is INT8:
        bound = step / 2
    else:  # three bits behind the point, down to 2**-6; equal steps of 2**-9 below
        bound = torch.maximum(exact.abs() * 2**-4, step * 2**-10)
    moved = (read_back(values, codes).double() - exact).abs()
    assert (moved <= bound * (1 + 1e-5)).all()


@FORMATS
def test_the_scale_puts_the_largest_element_at_the_limit(codes: CodeFormat) -> None:
    data, scales = quantize(torch.tensor([[1.0, -3.0, 2.0], [-0.001, 0.0, 0.0005]]), codes)
    torch.testing.assert_close(scales, torch.tensor([3.0, 0.001]) / codes.limit)
    largest = data.view(codes.code).float()[[0, 1], [1, 0]]
    assert largest.tolist() == [-codes.limit] * 2


@FORMATS
def test_zeros_stay_zeros(codes: CodeFormat) -> None:
    values = torch.zeros(3, 8)
    values[1] = torch.linspace(-1, 1, 8)
    got = read_back(values, codes)
    assert torch.equal(got[[0, 2]], values[[0, 2]])
    assert got[1].abs().max() > 0


@FORMATS
def test_infinity_saturates_and_nan_stays_in_its_row(codes: CodeFormat) -> None:
    values = torch.ones(3, 4)
    values[0, 1], values[0, 2], values[1, 3] = math.inf, -math.inf, math.nan
    got = read_back(values, codes)
    top = torch.finfo(torch.float32).max
    torch.testing.assert_close(got[0, 1:3] / top, torch.tensor([1.0, -1.0]))
    assert got[0].isfinite().all()
    assert got[1].isnan().all()
    torch.testing.assert_close(got[2], values[2])


def test_every_fp8_code_is_read_as_torch_reads_it() -> None:
    data = torch.arange(256, dtype=torch.uint8).view(64, 4)
    wanted = data.view(torch.float8_e4m3fn).float()
    rows = decode(data, torch.full((64,), 3.0), FP8_E4M3)
    real = ~wanted.isnan()
    assert int(real.sum()) == 254
    assert torch.equal(rows.scaled()[real], wanted[real] * 3)
    assert rows.values.isfinite().all()


def test_every_int8_code_is_read_as_a_number() -> None:
    data = torch.arange(256, dtype=torch.uint8).view(64, 4)
    rows = decode(data, torch.full((64,), 0.5), INT8)
    assert torch.equal(rows.scaled(), data.view(torch.int8).float() / 2)


@FORMATS
@given(seed=st.integers(0, 1000))
def test_no_code_is_nan(codes: CodeFormat, seed: int) -> None:
    """A code that FP8 calls NaN would poison kernels that decode by hardware."""
    values = torch.randn(9, 16, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 40)
    data, _ = quantize(values, codes)
    assert data.view(codes.code).float().isfinite().all()


@FORMATS
def test_half_precision_is_quantised_from_its_own_numbers(codes: CodeFormat) -> None:
    values = torch.randn(5, 16).to(torch.bfloat16)
    data, scales = quantize(values, codes)
    wide = quantize(values.float(), codes)
    assert torch.equal(data, wide[0]) and torch.equal(scales, wide[1])


def test_scales_that_would_not_be_aligned_are_refused() -> None:
    with pytest.raises(ValueError, match="head_dim 6 is not a multiple of 4"):
        CacheShape(1, 1, 1, 16, 6, INT8)
