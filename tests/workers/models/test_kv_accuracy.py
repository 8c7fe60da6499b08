"""What a quantised cache costs in accuracy, on the bundled model and 300 tokens of prose.

Measured (max and mean logit error, perplexity; logits have a standard deviation of 6.6):

    float32     -       -      17.690
    fp8_e4m3   1.61   0.172    17.839   +0.84 %
    int8       0.74   0.072    17.695   +0.03 %

The bounds are twice that: a scale off by one token, head or layer exceeds them by far.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.model_runner import ModelRunner

TEXT = """\
In the spring of the year the river rose again, and the people of the valley carried their chairs
and books up to the second floor, as their parents had done before them. Nobody was surprised. The
water came slowly over the fields, then over the road, and by the evening of the third day it
stood at the door of the school. The teacher, who had taught there for eleven years, closed the
windows, wrote the date on the blackboard, and walked home along the railway line with a lamp in
one hand and the register in the other.

"It will go down by Sunday," said her brother, who worked at the mill. "It always goes down by
Sunday."

But on Sunday it was still raining, and the bridge, which was made of stone and had been standing
since 1804, began to lean a little to the left. Engineers came from the city. They measured the
height of the water, the width of the arches and the angle of the wall, and they wrote the numbers
down in a long table. If the river rose by another 20 centimetres, they explained, the bridge
would have to be closed, and all goods would be carried by boat. The baker asked who was going to
pay for the boats. The engineers did not know. They were only responsible for the bridge.

That night the wind turned. The clouds moved off to the east, the stars appeared over the hills,
and in the morning the children could see the tops of the fence posts again.
"""
NUM_TOKENS, NUM_CONTEXT, BLOCK_SIZE = 300, 150, 16


@dataclass(frozen=True, slots=True)
class Reading:
    """The logits after each token, how well they foresee the next, and the memory of a block."""

    logits: torch.Tensor
    perplexity: float
    block_bytes: int


def read(folder: Path, stored: str) -> Reading:
    """The first half through the kernel for prompts, the second through that for answers."""
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids[:NUM_TOKENS]
    assert len(ids) == NUM_TOKENS
    runner = ModelRunner(
        folder,
        load_format="auto",
        dtype="float32",
        device="cpu",
        num_blocks=24,
        block_size=BLOCK_SIZE,
        kv_cache_dtype=stored,
    )
    runner.kv_cache.view(torch.uint8).fill_(0xFF)
    table = list(range(22, 2, -1))
    slices = tuple(SequenceSlice([token], at, table, True) for at, token in enumerate(ids))
    logits = runner.execute(PackedBatch(slices, NUM_CONTEXT))
    loss = torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:]))
    return Reading(logits, math.exp(loss.item()), runner.block_bytes)


@pytest.fixture(scope="module")
def exact(bundled_model: Path) -> Reading:
    return read(bundled_model, "auto")


@pytest.mark.parametrize(
    ("stored", "largest", "mean", "perplexity"),
    [("fp8_e4m3", 3.2, 0.35, 0.02), ("int8", 1.5, 0.15, 0.005)],
)
def test_logits_and_perplexity_stay_near_those_of_float32(
    bundled_model: Path,
    exact: Reading,
    stored: str,
    largest: float,
    mean: float,
    perplexity: float,
) -> None:
    coded = read(bundled_model, stored)
    error = (coded.logits - exact.logits).abs()
    assert 0 < error.max().item() < largest
    assert 0 < error.mean().item() < mean
    assert abs(coded.perplexity / exact.perplexity - 1) < perplexity
    assert exact.perplexity < 25  # it is the real model and real text
    assert exact.block_bytes / coded.block_bytes == pytest.approx(64 * 4 / (64 + 4))  # 3.76
