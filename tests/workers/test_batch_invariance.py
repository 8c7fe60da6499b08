"""What an answer owes to those that share its steps: nothing in one step, rounding in its cuts."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny_model import write_tiny_llama

from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.model_runner import ModelRunner

BLOCK_SIZE, BLOCKS_EACH = 16, 10
LENGTHS = (20, 33, 90, 140, 17, 16, 1)
TEXTS = [[(7 * index + at) % 64 for at in range(n)] for index, n in enumerate(LENGTHS)]
TABLES = [list(range(n * BLOCKS_EACH, (n + 1) * BLOCKS_EACH)) for n in range(len(TEXTS))]


def runner_of(folder: Path, dtype: str, kv_cache_dtype: str, load_format: str) -> ModelRunner:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("needs oneDNN")
    return ModelRunner(
        folder,
        load_format=load_format,
        dtype=dtype,
        device="cpu",
        num_blocks=len(TEXTS) * BLOCKS_EACH,
        block_size=BLOCK_SIZE,
        kv_cache_dtype=kv_cache_dtype,
    )


def tiny(folder: Path, dtype: str, kv_cache_dtype: str) -> ModelRunner:
    write_tiny_llama(folder, max_position_embeddings=256)
    return runner_of(folder, dtype, kv_cache_dtype, "dummy")


def slices(first: int) -> list[SequenceSlice]:
    """The last token of every text from `first` on, as generations."""
    pairs = list(zip(TEXTS, TABLES, strict=True))[first:]
    return [SequenceSlice(ids[-1:], len(ids) - 1, table, True) for ids, table in pairs]


def read(runner: ModelRunner, index: int, cut: int) -> torch.Tensor:
    """The logits behind a text that is read in pieces of `cut` tokens."""
    ids = TEXTS[index]
    rows = [
        step(runner, [SequenceSlice(ids[start : start + cut], start, TABLES[index], True)], 1)
        for start in range(0, len(ids), cut)
    ]
    return rows[-1][0]


def step(runner: ModelRunner, pieces: Sequence[SequenceSlice], num_context: int) -> torch.Tensor:
    return runner.execute(PackedBatch(tuple(pieces), num_context))


def check_every_step_alone_and_together(runner: ModelRunner) -> None:
    for index in range(len(TEXTS)):
        read(runner, index, 64)
    chunks = [SequenceSlice(TEXTS[n], 0, TABLES[n], True) for n in (0, 1)]
    chunks.append(SequenceSlice(TEXTS[2][30:77], 30, TABLES[2], True))
    generations = slices(3)
    together = step(runner, (*chunks, *generations), len(chunks))
    cache = runner.kv_cache.clone()
    for number, piece in enumerate((*chunks, *generations)):
        alone = step(runner, (piece,), int(number < len(chunks)))
        assert torch.equal(alone[0], together[number]), f"slice {number}"
    assert torch.equal(runner.kv_cache.view(torch.uint8), cache.view(torch.uint8))


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_who_shares_a_step_changes_no_bit(tmp_path: Path, dtype: str, kv_cache_dtype: str) -> None:
    check_every_step_alone_and_together(tiny(tmp_path, dtype, kv_cache_dtype))


def test_who_shares_a_step_changes_no_bit_of_the_bundled_model(bundled_model: Path) -> None:
    """In bfloat16; of float32 the tests of the forward pass say so."""
    check_every_step_alone_and_together(runner_of(bundled_model, "bfloat16", "auto", "auto"))


@pytest.mark.parametrize("cut", [1, 7, 16, 37])
def test_how_a_prompt_is_cut_changes_only_the_rounding_of_float32(tmp_path: Path, cut: int) -> None:
    """Half precision rounds thousands of times more coarsely; nothing is promised of it."""
    runner = tiny(tmp_path, "float32", "auto")
    for index in range(len(TEXTS)):
        whole, in_pieces = read(runner, index, 1000), read(runner, index, cut)
        torch.testing.assert_close(in_pieces, whole, atol=1e-4, rtol=0)
        assert in_pieces.argmax() == whole.argmax()
    for index, row in enumerate(step(runner, slices(0), 0)):
        torch.testing.assert_close(row, read(runner, index, 1000), atol=1e-4, rtol=0)
