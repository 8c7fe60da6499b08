"""The runner with a quantised cache: where its bytes lie, and that a copy of them is enough."""

from pathlib import Path

import pytest
import torch
from tiny_model import write_tiny_llama

from segue.cluster.config.engine import EngineConfig
from segue.cluster.config.model import ModelConfig
from segue.cluster.errors import ConfigurationError
from segue.kvtransfer.checksum import memory_view
from segue.kvtransfer.layout import KVLayout
from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.kv_identity import kv_layout
from segue.workers.model_runner import ModelRunner

NUM_BLOCKS, BLOCK_SIZE = 12, 4
STORED = pytest.mark.parametrize("stored", ["fp8_e4m3", "int8"])


def runner_of(folder: Path, stored: str, dtype: str = "float32", **changes: int) -> ModelRunner:
    write_tiny_llama(folder, **changes)
    runner = ModelRunner(
        folder,
        load_format="dummy",
        dtype=dtype,
        device="cpu",
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        kv_cache_dtype=stored,
    )
    runner.kv_cache.view(torch.uint8).fill_(0xFF)  # NaN, as a code and as a scale
    return runner


def layout_of(runner: ModelRunner, stored: str) -> KVLayout:
    engine = EngineConfig.model_validate({"kv_cache_dtype": stored, "block_size": BLOCK_SIZE})
    return kv_layout(ModelConfig(), engine, runner.spec, NUM_BLOCKS)


def ask(
    runner: ModelRunner, ids: list[int], start: int, blocks: list[int], num_context: int = 1
) -> torch.Tensor:
    return runner.execute(PackedBatch((SequenceSlice(ids, start, blocks, True),), num_context))


@STORED
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_are_near_those_of_a_plain_cache(tmp_path: Path, stored: str, dtype: str) -> None:
    ids = [(7 * at) % 64 for at in range(30)]
    blocks = [3, 1, 9, 0, 7, 4, 11, 2]
    rows = {}
    for each in (stored, "auto"):
        runner = runner_of(tmp_path, each, dtype)
        first = ask(runner, ids[:17], 0, blocks)
        more = ask(runner, ids[17:29], 17, blocks)
        last = ask(runner, ids[29:], 29, blocks, num_context=0)
        rows[each] = torch.cat((first, more, last))
    assert rows[stored].isfinite().all()
    assert torch.cosine_similarity(rows[stored], rows["auto"]).min().item() > 0.99
    assert not torch.equal(rows[stored], rows["auto"])


@STORED
def test_a_block_holds_its_codes_and_scales_where_the_layout_says(
    tmp_path: Path, stored: str
) -> None:
    """A token written alone: of each head one slot and one scale, and no other byte at all."""
    runner = runner_of(tmp_path, stored)
    layout = layout_of(runner, stored)
    assert runner.kv_cache.nbytes == layout.num_bytes
    assert runner.block_bytes == layout.block_bytes
    region = memory_view(runner.kv_cache.data_ptr(), layout.num_bytes)
    ask(runner, [5, 6, 7, 8, 9], 0, [3, 8])
    before = bytes(region)
    ask(runner, [11], 5, [3, 8], num_context=0)
    changed = {at for at, (old, new) in enumerate(zip(before, region, strict=True)) if old != new}
    slot = 5 % BLOCK_SIZE
    data, scales = layout.head_tensors()
    slot_bytes = data.place.length // BLOCK_SIZE
    own: set[int] = set()
    for head in range(layout.num_layers * 2 * layout.num_kv_heads):
        start = layout.offset(8) + head * layout.head_bytes
        first = start + slot * slot_bytes
        own.update(range(first, first + slot_bytes))
        first = start + scales.place.offset + slot * layout.scale_bytes
        scale_places = set(range(first, first + layout.scale_bytes))
        assert changed & scale_places  # it was NaN
        own |= scale_places
    assert changed <= own
    assert len(changed) > 0.9 * len(own)


@STORED
def test_the_bytes_of_a_block_are_all_that_another_worker_needs(
    tmp_path: Path, stored: str
) -> None:
    """What a transfer does: whole blocks, other block ids, and nothing besides."""
    source, target = runner_of(tmp_path, stored), runner_of(tmp_path, stored)
    layout = layout_of(source, stored)
    here, there = (memory_view(r.kv_cache.data_ptr(), layout.num_bytes) for r in (target, source))
    ids = list(range(1, 12))
    ask(source, ids[:10], 0, [3, 8, 5])
    for theirs, ours in zip([3, 8, 5], [0, 11, 2], strict=True):
        remote, local = layout.block_range(theirs), layout.block_range(ours)
        here[local.offset : local.end] = there[remote.offset : remote.end]
    wanted = ask(source, ids[10:], 10, [3, 8, 5], num_context=0)
    got = ask(target, ids[10:], 10, [0, 11, 2], num_context=0)
    torch.testing.assert_close(got, wanted, atol=0, rtol=0)


@STORED
def test_a_neighbour_full_of_nan_harms_nobody(tmp_path: Path, stored: str) -> None:
    runner = runner_of(tmp_path, stored)
    ask(runner, [1, 2, 3], 0, [3])
    alone = ask(runner, [4], 3, [3], num_context=0)
    good, bad = SequenceSlice([4], 3, [3], True), SequenceSlice([4], 7, [10, 11], True)
    rows = runner.execute(PackedBatch((good, bad), 0))
    torch.testing.assert_close(rows[0], alone[0])
    assert rows[1].isnan().all()


def test_what_cannot_be_stored_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'fp4' is not one of auto, fp8_e4m3, int8"):
        runner_of(tmp_path, "fp4")
    with pytest.raises(ConfigurationError, match="kv_cache_dtype: head_dim 6"):
        runner_of(tmp_path, "int8", head_dim=6)
