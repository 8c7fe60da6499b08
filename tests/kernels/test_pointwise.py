"""Normalisation, rotation and packed products against their definitions."""

import pytest
import torch

from segue.kernels.dispatch import CPU, REFERENCE, KernelSet
from segue.kernels.rope import rotation

KERNELS = pytest.mark.parametrize("kernels", [REFERENCE, CPU], ids=["reference", "cpu"])


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_matches_its_definition(kernels: KernelSet, dtype: torch.dtype) -> None:
    hidden, weight = torch.randn(5, 48).to(dtype), torch.rand(48).to(dtype)
    exact = hidden.double()
    wanted = weight.double() * exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    got = kernels.rms_norm(hidden, weight, 1e-5)
    assert got.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got.double(), wanted, atol=tolerance, rtol=tolerance)


@KERNELS
def test_rotation_turns_pairs_as_complex_numbers(kernels: KernelSet) -> None:
    positions = torch.tensor([0, 1, 500, 8191])
    frequencies = torch.tensor([1.0, 0.1, 0.003])
    heads = torch.randn(4, 2, 6)
    wider = torch.cat((heads, torch.ones(4, 1, 6)), dim=1)
    kernels.rotate(wider[:, :2], rotation(positions, frequencies, torch.float32))
    got = wider[:, :2]
    pairs = torch.complex(heads[..., :3].double(), heads[..., 3:].double())
    angles = (positions.unsqueeze(1) * frequencies).double()
    turned = pairs * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    wanted = torch.cat((turned.real, turned.imag), dim=-1).float()
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(got[0], heads[0])
    assert torch.equal(wider[:, 2], torch.ones(4, 6))


@KERNELS
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_multiplies_by_the_packed_weight(
    kernels: KernelSet, rows: int, dtype: torch.dtype
) -> None:
    weight, left = torch.randn(24, 32).to(dtype), torch.randn(rows, 32).to(dtype)
    got = kernels.linear(left, kernels.pack_weight(weight))
    assert got.shape == (rows, 24)
    wanted = left.double() @ weight.double().T
    tolerance = 1e-4 if dtype == torch.float32 else 1e-1
    torch.testing.assert_close(got.double(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_a_product_is_bit_for_bit_the_same_in_company(dtype: torch.dtype) -> None:
    """Of a wide and long weight: products with small ones happen to add up alike anyway."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("needs oneDNN")
    weight, left = (torch.randn(4096, 4096) * 0.05).to(dtype), torch.randn(64, 4096).to(dtype)
    packed = CPU.pack_weight(weight)
    together = CPU.linear(left, packed)
    for first, last in ((0, 1), (33, 34), (5, 7), (20, 28), (1, 64)):
        alone = CPU.linear(left[first:last].clone(), packed)
        assert torch.equal(alone, together[first:last]), f"rows {first}..{last}"
