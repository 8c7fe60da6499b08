"""The layout: ranges agree with how an array of that shape lies in memory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.errors import ConfigurationError, TransferError
from segue.kvtransfer.layout import KVLayout, incompatibility
from segue.kvtransfer.transport import ByteRange

SMALL = st.integers(min_value=1, max_value=4)
LAYOUTS = st.builds(
    KVLayout,
    num_blocks=SMALL,
    num_layers=SMALL,
    num_kv_heads=SMALL,
    block_size=SMALL,
    head_dim=SMALL,
    dtype=st.just("bfloat16"),
    itemsize=st.just(2),
)
LAYOUT = KVLayout(10, 30, 3, 16, 64, "float32", 4)
FP8 = KVLayout(10, 30, 3, 16, 64, "fp8_e4m3", 1, 4)
QUANTISED = st.builds(
    KVLayout,
    num_blocks=SMALL,
    num_layers=SMALL,
    num_kv_heads=SMALL,
    block_size=SMALL,
    head_dim=SMALL.map(lambda n: 4 * n),
    dtype=st.sampled_from(["fp8_e4m3", "int8"]),
    itemsize=st.just(1),
    scale_bytes=st.just(4),
)


def numbered_bytes(layout: KVLayout) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """An array of the documented axes whose elements are the numbers of their bytes."""
    shape = (
        layout.num_blocks,
        layout.num_layers,
        2,
        layout.num_kv_heads,
        layout.block_size * (layout.head_dim * layout.itemsize + layout.scale_bytes),
    )
    return np.arange(layout.num_bytes, dtype=np.int64).reshape(shape)


def bytes_of(ranges: list[ByteRange]) -> list[int]:
    return [byte for part in ranges for byte in range(part.offset, part.end)]


@given(layout=LAYOUTS | QUANTISED, data=st.data())
def test_ranges_are_slices_of_the_array(layout: KVLayout, data: st.DataObject) -> None:
    array = numbered_bytes(layout)
    block = data.draw(st.integers(0, layout.num_blocks - 1))
    assert bytes_of([layout.block_range(block)]) == array[block].ravel().tolist()

    first = data.draw(st.integers(0, layout.num_layers - 1))
    stop = data.draw(st.integers(first + 1, layout.num_layers))
    layers = layout.layer_range(block, first, stop)
    assert bytes_of([layers]) == array[block, first:stop].ravel().tolist()

    first = data.draw(st.integers(0, layout.num_kv_heads - 1))
    stop = data.draw(st.integers(first + 1, layout.num_kv_heads))
    heads = layout.head_ranges(block, first, stop)
    assert bytes_of(heads) == array[block, :, :, first:stop].ravel().tolist()


def test_sizes_of_a_known_model() -> None:
    assert LAYOUT.block_bytes == 30 * 2 * 3 * 16 * 64 * 4
    assert LAYOUT.num_bytes == 10 * LAYOUT.block_bytes


@given(layout=LAYOUTS | QUANTISED)
def test_the_tensors_of_a_head_fill_it_without_a_gap(layout: KVLayout) -> None:
    tensors = layout.head_tensors()
    assert [tensor.name for tensor in tensors] == ["data", "scales"][: len(tensors)]
    assert len(tensors) == 1 + (layout.scale_bytes > 0)
    assert bytes_of([tensor.place for tensor in tensors]) == list(range(layout.head_bytes))


def test_a_quantised_block_is_nearly_a_quarter_of_a_float32_block() -> None:
    assert FP8.block_bytes == 30 * 2 * 3 * 16 * (64 + 4)
    assert LAYOUT.block_bytes / FP8.block_bytes == pytest.approx(64 * 4 / 68)
    data, scales = FP8.head_tensors()
    assert (data.dtype, data.place) == ("fp8_e4m3", ByteRange(0, 1024))
    assert (scales.dtype, scales.place) == ("float32", ByteRange(1024, 64))


def test_parts_that_do_not_exist_are_refused() -> None:
    for block in (-1, 10):
        with pytest.raises(TransferError, match="outside"):
            LAYOUT.block_range(block)
    for first, stop in [(-1, 1), (0, 31), (2, 2), (3, 2)]:
        with pytest.raises(TransferError, match="layers"):
            LAYOUT.layer_range(0, first, stop)
    with pytest.raises(TransferError, match="heads"):
        LAYOUT.head_ranges(0, 0, 4)
    with pytest.raises(ConfigurationError, match="head_dim"):
        replace(LAYOUT, head_dim=0)
    with pytest.raises(ConfigurationError, match="head_dim of 66"):
        replace(FP8, head_dim=66)
    with pytest.raises(ConfigurationError, match="scale_bytes"):
        replace(FP8, scale_bytes=-4)


@pytest.mark.parametrize(
    "field", ["num_layers", "num_kv_heads", "block_size", "head_dim", "dtype", "itemsize"]
)
def test_a_difference_is_refused_by_name(field: str) -> None:
    change: dict[str, Any] = {field: "float16" if field == "dtype" else getattr(LAYOUT, field) + 1}
    other = replace(LAYOUT, **change)
    message = incompatibility(LAYOUT.fingerprint(), other.fingerprint())
    assert message is not None and message.startswith(f"{field} is ")


@pytest.mark.parametrize(
    ("ours", "theirs", "field"),
    [
        (LAYOUT, FP8, "dtype is 'float32' here and 'fp8_e4m3' at the peer"),
        (FP8, replace(FP8, dtype="int8"), "dtype is 'fp8_e4m3' here and 'int8' at the peer"),
        (FP8, replace(FP8, scale_bytes=0), "scales is 'v1' here and 'none' at the peer"),
        (FP8, replace(FP8, scale_bytes=2), "tensors is 'data:fp8_e4m3@0+1024 scales:float32@1024"),
    ],
)
def test_another_kind_of_code_or_scale_is_refused_by_name(
    ours: KVLayout, theirs: KVLayout, field: str
) -> None:
    message = incompatibility(ours.fingerprint(), theirs.fingerprint())
    assert message is not None and message.startswith(field)


def test_storage_tells_apart_whatever_a_block_may_hold() -> None:
    layouts = [
        LAYOUT,
        replace(LAYOUT, dtype="bfloat16", itemsize=2),
        FP8,
        replace(FP8, dtype="int8"),
        replace(FP8, scale_bytes=2),
        replace(FP8, scale_bytes=0),
    ]
    assert LAYOUT.storage == "float32"
    assert len({layout.storage for layout in layouts}) == len(layouts)


def test_only_the_number_of_blocks_may_differ() -> None:
    other = replace(LAYOUT, num_blocks=3)
    assert incompatibility(LAYOUT.fingerprint(), other.fingerprint()) is None


def test_a_missing_field_differs_from_an_empty_one() -> None:
    assert incompatibility({"adapter": ""}, {}) == "adapter is '' here and absent at the peer"
    assert incompatibility({}, {"adapter": ""}) == "adapter is absent here and '' at the peer"
