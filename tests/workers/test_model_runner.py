"""The runner: what it returns, what it refuses, and what it must not touch."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny_model import write_tiny_llama

from segue.cluster.errors import ConfigurationError
from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.kv_identity import kv_block_bytes
from segue.workers.kvcache.block_operations import CopyBlock, OffloadBlock, OnboardBlock
from segue.workers.model_runner import ModelRunner

NUM_BLOCKS, BLOCK_SIZE = 32, 4


def runner_of(
    folder: Path, dtype: str = "float32", seed: int = 0, num_host_blocks: int = 0
) -> ModelRunner:
    write_tiny_llama(folder)
    runner = ModelRunner(
        folder,
        load_format="dummy",
        dtype=dtype,
        device="cpu",
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        num_host_blocks=num_host_blocks,
        dummy_seed=seed,
    )
    runner.kv_cache.fill_(torch.nan)
    return runner


@pytest.fixture
def runner(tmp_path: Path) -> ModelRunner:
    return runner_of(tmp_path)


def piece(
    ids: Sequence[int], start: int = 0, blocks: Sequence[int] = (3, 1, 2), samples: bool = True
) -> SequenceSlice:
    return SequenceSlice(ids, start, blocks, samples)


def test_one_row_for_each_slice_that_samples(runner: ModelRunner) -> None:
    quiet = piece([1, 2, 3], samples=False)
    rows = runner.execute(PackedBatch((quiet, piece([4, 5], blocks=[9]), piece([6], 0, [8])), 2))
    assert (rows.shape, rows.dtype, rows.device.type) == ((2, 64), torch.float32, "cpu")
    assert rows.isfinite().all()
    alone = runner.execute(PackedBatch((piece([4, 5], blocks=[20]),), 1))
    torch.testing.assert_close(rows[:1], alone)
    assert runner.execute(PackedBatch((quiet,), 1)).shape == (0, 64)


def test_a_step_writes_only_the_slots_of_its_tokens(runner: ModelRunner) -> None:
    runner.kv_cache.fill_(7.0)
    runner.execute(PackedBatch((piece([1, 2, 3, 4, 5, 6]), piece([7], 5, [9, 7])), 1))
    touched = runner.kv_cache.ne(7.0)
    written = touched.all(dim=-1).all(dim=3).all(dim=2).all(dim=1)
    assert int(touched.sum()) == int(written.sum()) * runner.kv_cache[0, :, :, :, 0].numel()
    wanted = torch.zeros(NUM_BLOCKS, BLOCK_SIZE, dtype=torch.bool)
    wanted[3], wanted[1, :2], wanted[7, 1] = True, True, True
    assert torch.equal(written, wanted)


def test_a_neighbour_full_of_nan_harms_nobody(runner: ModelRunner) -> None:
    """A generation whose own past is NaN must stay the only one with NaN logits."""
    runner.execute(PackedBatch((piece([1, 2, 3]),), 1))
    alone = runner.execute(PackedBatch((piece([4], 3),), 0))
    rows = runner.execute(PackedBatch((piece([4], 3), piece([4], 7, [10, 11])), 0))
    torch.testing.assert_close(rows[0], alone[0])
    assert rows[1].isnan().all()


def test_very_different_lengths_in_one_step(runner: ModelRunner) -> None:
    lengths = [60, 1, 2, 9, 30]
    blocks = [list(range(15)), [15], [16], [17, 18, 19], list(range(20, 28))]
    texts = [[(at * 7 + index) % 64 for at in range(n)] for index, n in enumerate(lengths)]
    wanted = []
    for ids, table in zip(texts, blocks, strict=True):
        wanted.append(runner.execute(PackedBatch((piece(ids, 0, table),), 1))[0])
    last = [piece(ids[-1:], len(ids) - 1, table) for ids, table in zip(texts, blocks, strict=True)]
    rows = runner.execute(PackedBatch(tuple(last), 0))
    torch.testing.assert_close(rows, torch.stack(wanted), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_single(tmp_path: Path, dtype: str) -> None:
    batch = PackedBatch((piece([1, 2, 3, 4, 5]),), 1)
    step = PackedBatch((piece([9], 5),), 0)
    exact, half = runner_of(tmp_path), runner_of(tmp_path, dtype)
    for each in (batch, step):
        got, wanted = half.execute(each), exact.execute(each)
        assert got.dtype == torch.float32
        assert torch.cosine_similarity(got, wanted).item() > 0.99


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        (PackedBatch((), 0), "empty"),
        (PackedBatch((piece([1]),), 2), "num_context"),
        (PackedBatch((piece([]),), 1), "no tokens"),
        (PackedBatch((piece([1], -1),), 1), "begins at -1"),
        (PackedBatch((piece([64]),), 1), "token id 64"),
        (PackedBatch((piece([1, -1]),), 1), "token id -1"),
        (PackedBatch((piece([1], 0, [NUM_BLOCKS]),), 1), "block id 32"),
        (PackedBatch((piece([1], 0, [-1]),), 1), "block id -1"),
        (PackedBatch((piece([1, 2, 3], 10),), 1), "block table"),
        (PackedBatch((piece([1, 2]),), 0), "generation"),
        (PackedBatch((piece([1], samples=False),), 0), "generation"),
    ],
)
def test_a_batch_that_does_not_hold_together_is_refused_untouched(
    runner: ModelRunner, batch: PackedBatch, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        runner.execute(batch)
    assert runner.kv_cache.isnan().all()


def test_the_cache_is_one_block_major_allocation(runner: ModelRunner) -> None:
    assert tuple(runner.kv_cache.shape) == (NUM_BLOCKS, 2, 2, 2, BLOCK_SIZE, 8)
    assert runner.kv_cache.is_contiguous()
    assert runner.block_bytes == runner.kv_cache[0].nbytes
    assert runner.block_bytes == kv_block_bytes(runner.spec, "float32", BLOCK_SIZE)
    assert runner.block_bytes == 2 * kv_block_bytes(runner.spec, "bfloat16", BLOCK_SIZE)


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="int4"):
        runner_of(tmp_path, "int4")


def test_copied_blocks_go_on_like_their_sources(tmp_path: Path) -> None:
    """Five tokens lie in blocks 3 and 1; a copy and a way over the host must read the same."""
    runner = runner_of(tmp_path, num_host_blocks=2)
    runner.execute(PackedBatch((piece([1, 2, 3, 4, 5]),), 1))
    wanted = runner.execute(PackedBatch((piece([6], 5),), 0))
    runner.copy_blocks(
        (
            CopyBlock(1, 9, 1),
            OffloadBlock(3, 0),
            CopyBlock(9, 3, 1),  # what the host holds by now is lost here
            OnboardBlock(0, 8),
        )
    )
    torch.testing.assert_close(runner.execute(PackedBatch((piece([6], 5, [8, 9]),), 0)), wanted)


MEMORY_PROBE = """
import sys, torch
from pathlib import Path
from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.model_runner import ModelRunner
torch.set_num_threads(1)
runner = ModelRunner(Path(sys.argv[1]), load_format="auto", dtype="float32", device="cpu",
                     num_blocks=4000, block_size=16)
piece = SequenceSlice(list(range(512)), 0, list(range(32)), True)
runner.execute(PackedBatch((piece,), 1))
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak[0].split()[1]) * 1024)
"""


def test_the_bundled_model_loads_lean(bundled_model: Path) -> None:
    """Weights take 650 MB packed; the 2.8 GB cache costs nothing before it is written. A CUDA
    build of torch takes 300 MB more than one for CPUs."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_PROBE, str(bundled_model)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert int(done.stdout) < 1.7e9
