"""How large the scale of a quantised row is; apart from torch, for those who only count bytes."""

SCALE_BYTES = 4  # float32; kernels/quantization.py says why
