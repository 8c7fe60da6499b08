"""Nothing of a step, and nothing of a copy, is told before the device has done it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_model import write_tiny_llama

from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.block_copies import BlockCopier
from segue.workers.kvcache.block_operations import OffloadBlock
from segue.workers.model_runner import ModelRunner


class WatchedDevice:
    """`log` is what was waited for, and when."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def copy(self, copies: Callable[[], None]) -> None:
        copies()
        self.log.append("copies done")

    def finish(self) -> None:
        self.log.append("step done")


@pytest.mark.parametrize("samples", [True, False], ids=["samples", "only a chunk"])
def test_a_step_is_waited_for_whether_or_not_it_samples(tmp_path: Path, samples: bool) -> None:
    """Of a chunk that is not the last one no logits are copied, so nothing else would wait."""
    write_tiny_llama(tmp_path)
    device = WatchedDevice()
    runner = ModelRunner(
        tmp_path,
        load_format="dummy",
        dtype="float32",
        device="cpu",
        num_blocks=4,
        block_size=4,
        layer_groups=2,
        work=device,
    )
    batch = PackedBatch((SequenceSlice([1, 2, 3], 0, [0], samples),), 1)
    launched = runner.launch(batch)
    assert device.log == []
    assert len(runner.collect(launched)) == samples
    assert device.log == ["step done"]
    runner.execute(batch, lambda num_layers: device.log.append(f"{num_layers} layers"))
    assert device.log == ["step done", "1 layers", "2 layers", "step done"]


def test_copies_are_the_devices_work_and_are_done_when_they_are_told() -> None:
    memory, device = torch.arange(12.0).view(3, 4), WatchedDevice()
    BlockCopier(memory, 1, device).run([OffloadBlock(2, 0)])
    assert device.log == ["copies done"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_a_step_that_samples_nothing_has_written_its_kv(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, num_hidden_layers=16)
    runner = ModelRunner(
        tmp_path,
        load_format="dummy",
        dtype="bfloat16",
        device="cuda",
        num_blocks=64,
        block_size=16,
    )
    runner.kv_cache.fill_(torch.nan)
    ids = [token % 60 for token in range(1000)]
    runner.execute(PackedBatch((SequenceSlice(ids, 0, list(range(64)), False),), 1))
    seen = torch.empty_like(runner.kv_cache[0], device="cpu")
    reader = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(reader):  # as a peer would: without waiting for our streams
        seen.copy_(runner.kv_cache[0])
    assert seen.isfinite().all()
