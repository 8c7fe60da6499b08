"""The forward pass against transformers, on the bundled model and on small random ones."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.model_runner import ModelRunner

TEXT = """The river had been rising since 1987, and by noon 12 of the 40 houses stood in water.
def area(radius: float) -> float:
    return 3.14159 * radius ** 2  # never negative
"Où est la gare?" she asked. 東京の天気は晴れです。 Привет, мир! 🚀🚀 The end -- or so we thought...
\tTabs, CRLF\r\n and    runs of spaces are text as well; so are {"json": [1, 2, 3]} and <html>.
Once upon a time there was a small model that read everything twice, once alone and once in
company, and was asked whether it could tell the difference. It could not, and that was the point.
After that the engineers went home, and the lights in the long hall went out one after another.
"""
PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about autumn.",
    "List three prime numbers.",
    "Explain gravity to a child.",
    "def fibonacci(n):",
    "Translate 'good morning' to Spanish.",
    "Who wrote Hamlet?",
    "2 + 2 * 3 =",
    "Tell me a story about a dragon and a small boat on a wide river.",
    "Name a fruit.",
)


@dataclass
class Fed:
    """A sequence that is fed in pieces, with the logits after each piece."""

    ids: list[int]
    blocks: list[int]
    pieces: Iterator[int]
    done: int = 0
    logits: dict[int, torch.Tensor] = field(default_factory=dict)

    def next_slice(self) -> SequenceSlice | None:
        if self.done == len(self.ids):
            return None
        end = min(self.done + next(self.pieces), len(self.ids))
        return SequenceSlice(self.ids[self.done : end], self.done, self.blocks, True)


def feed(runner: ModelRunner, sequences: Sequence[Fed]) -> None:
    """Step until all are fed; single tokens after the first go as generations."""
    while True:
        pairs = [(fed, piece) for fed in sequences if (piece := fed.next_slice())]
        if not pairs:
            return
        pairs.sort(key=lambda pair: pair[1].start > 0 and len(pair[1].token_ids) == 1)
        num_context = sum(len(piece.token_ids) > 1 or piece.start == 0 for _, piece in pairs)
        batch = PackedBatch(tuple(piece for _, piece in pairs), num_context)
        for (fed, piece), row in zip(pairs, runner.execute(batch), strict=True):
            fed.done = piece.end
            fed.logits[piece.end - 1] = row


def cycle(*sizes: int) -> Iterator[int]:
    while True:
        yield from sizes


def runner_of(folder: Path, block_size: int = 16, num_blocks: int = 256) -> ModelRunner:
    runner = ModelRunner(
        folder,
        load_format="auto",
        dtype="float32",
        device="cpu",
        num_blocks=num_blocks,
        block_size=block_size,
    )
    runner.kv_cache.fill_(torch.nan)
    return runner


def tables(runner: ModelRunner, lengths: Sequence[int]) -> list[list[int]]:
    """Scattered block tables, each with a spare block at its end."""
    num_blocks, block_size = runner.kv_cache.shape[0], runner.kv_cache.shape[4]
    free = list(range(num_blocks))
    random.Random(0).shuffle(free)
    return [[free.pop() for _ in range(length // block_size + 2)] for length in lengths]


def worst_difference(fed: Fed, reference: LlamaForCausalLM) -> float:
    with torch.inference_mode():
        wanted = reference(torch.tensor([fed.ids])).logits[0]
    assert fed.logits and fed.done == len(fed.ids)
    return max(float((row - wanted[at]).abs().max()) for at, row in fed.logits.items())


@pytest.fixture(scope="module")
def bundled_reference(bundled_model: Path) -> LlamaForCausalLM:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(bundled_model, dtype=torch.float32)
    return model


@pytest.fixture(scope="module")
def bundled_runner(bundled_model: Path) -> ModelRunner:
    return runner_of(bundled_model)


def test_uneven_chunks_in_company_give_the_reference_logits(
    bundled_model: Path, bundled_runner: ModelRunner, bundled_reference: LlamaForCausalLM
) -> None:
    tokenizer = Tokenizer.from_file(str(bundled_model / "tokenizer.json"))
    long = tokenizer.encode(TEXT * 2).ids[:300]
    assert len(long) == 300
    texts = [long, long[40:150], long[200:260], long[:17]]
    blocks = tables(bundled_runner, [len(ids) for ids in texts])
    pieces = [cycle(1, 7, 16, 33, 64, 2, 30), cycle(25, 1, 1, 1), cycle(16), cycle(2, 1, 1)]
    sequences = [Fed(*parts) for parts in zip(texts, blocks, pieces, strict=True)]
    feed(bundled_runner, sequences)
    for fed in sequences:
        assert worst_difference(fed, bundled_reference) < 1e-3


def greedy(runner: ModelRunner, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Prefill all prompts in one step, then decode them as one batch."""
    blocks = tables(runner, [len(prompt) + count for prompt in prompts])
    pieces = [
        SequenceSlice(ids, 0, table, True) for ids, table in zip(prompts, blocks, strict=True)
    ]
    produced: list[list[int]] = [[] for _ in prompts]
    num_context = len(prompts)
    for step in range(count):
        drawn = runner.execute(PackedBatch(tuple(pieces), num_context)).argmax(-1).tolist()
        for tokens, token in zip(produced, drawn, strict=True):
            tokens.append(token)
        pieces = [
            SequenceSlice([token], len(ids) + step, table, True)
            for token, ids, table in zip(drawn, prompts, blocks, strict=True)
        ]
        num_context = 0
    return produced


def test_greedy_continuations_are_those_of_transformers(
    bundled_model: Path, bundled_runner: ModelRunner, bundled_reference: LlamaForCausalLM
) -> None:
    tokenizer = Tokenizer.from_file(str(bundled_model / "tokenizer.json"))
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in PROMPTS]
    prompts = [tokenizer.encode(chat).ids for chat in chats]
    produced = greedy(bundled_runner, prompts, 64)
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
    reference: Any = bundled_reference
    wanted = reference.generate(
        padded,
        attention_mask=mask,
        max_new_tokens=64,
        min_new_tokens=64,
        do_sample=False,
        use_cache=True,
        suppress_tokens=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert produced == wanted[:, longest:].tolist()


def test_a_generation_is_bit_for_bit_the_same_in_company(bundled_runner: ModelRunner) -> None:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("needs packed weights, whose products do not depend on the number of rows")
    lengths = [20, 33, 90, 140, 17]
    texts = [[(7 * index + at) % 49152 for at in range(n)] for index, n in enumerate(lengths)]
    blocks = tables(bundled_runner, lengths)
    feed(
        bundled_runner,
        [Fed(ids[:-1], table, cycle(64)) for ids, table in zip(texts, blocks, strict=True)],
    )
    last = tuple(
        SequenceSlice(ids[-1:], len(ids) - 1, table, True)
        for ids, table in zip(texts, blocks, strict=True)
    )
    together = bundled_runner.execute(PackedBatch(last, 0))
    for piece, row in zip(last, together, strict=True):
        torch.testing.assert_close(
            bundled_runner.execute(PackedBatch((piece,), 0))[0], row, atol=0, rtol=0
        )


TINY: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def tiny_reference(changes: dict[str, Any]) -> LlamaForCausalLM:
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig.from_dict(TINY | changes))
    model.train(False)
    return model


@pytest.mark.parametrize(
    ("changes", "shard_size", "block_size"),
    [
        ({"tie_word_embeddings": True}, "50MB", 16),
        ({"rope_parameters": LLAMA3, "tie_word_embeddings": False}, "40KB", 4),
        ({"head_dim": 20, "num_key_value_heads": 3}, "30KB", 5),
        ({"num_key_value_heads": 6, "rms_norm_eps": 1e-3}, "50MB", 1),
        ({"num_key_value_heads": 1}, "50MB", 64),
    ],
    ids=["tied", "llama3-untied-sharded", "head-dim", "multi-head", "multi-query"],
)
def test_variants_give_the_reference_logits(
    tmp_path: Path, changes: dict[str, Any], shard_size: str, block_size: int
) -> None:
    reference = tiny_reference(changes)
    reference.save_pretrained(tmp_path, max_shard_size=shard_size)
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (shard_size != "50MB")
    runner = runner_of(tmp_path, block_size)
    texts = [[(at * 17 + start) % 101 for at in range(n)] for start, n in ((0, 90), (5, 41))]
    blocks = tables(runner, [len(ids) for ids in texts])
    sequences = [
        Fed(texts[0], blocks[0], cycle(9, 1, 1, 20)),
        Fed(texts[1], blocks[1], cycle(3, 1, 1)),
    ]
    feed(runner, sequences)
    for fed in sequences:
        assert worst_difference(fed, reference) < 1e-4


def test_the_old_spelling_of_rope_scaling_gives_the_same_logits(tmp_path: Path) -> None:
    reference = tiny_reference({"rope_parameters": LLAMA3})
    reference.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    path.write_text(json.dumps(config))
    runner = runner_of(tmp_path)
    ids = list(range(100))
    fed = Fed(ids, tables(runner, [100])[0], cycle(100))
    feed(runner, [fed])
    assert worst_difference(fed, reference) < 1e-4
