"""What the model says, from nothing but the model: no engine, no cache of prefixes, no transfer."""

from pathlib import Path

import torch
from fuzz_draw import BLOCK_SIZE, MIN_BLOCKS, Question

from segue.cluster.request import SamplingParams
from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.model_runner import ModelRunner
from segue.workers.sampler import SamplingRow, sample


class Oracle:
    """Reads the whole prompt in one step, and writes one token a step, one request at a time."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)  # several would only wait for each other beside other work
        self._runner = ModelRunner(
            folder,
            load_format="auto",
            dtype="float32",
            device="cpu",
            num_blocks=MIN_BLOCKS + 1,
            block_size=BLOCK_SIZE,
        )
        self._blocks = tuple(range(MIN_BLOCKS + 1))

    def answer(self, question: Question) -> list[list[int]]:
        """The tokens of each choice."""
        return [
            self._write(question.prompt, question.max_tokens, sampling)
            for sampling in question.samples()
        ]

    def _write(
        self, prompt: tuple[int, ...], num_tokens: int, sampling: SamplingParams
    ) -> list[int]:
        answer: list[int] = []
        tokens, start = prompt, 0
        for _ in range(num_tokens):
            piece = SequenceSlice(tokens, start, self._blocks, samples=True)
            logits = self._runner.execute(PackedBatch((piece,), 1 if start == 0 else 0))
            start += len(tokens)
            (token,) = sample(logits, [SamplingRow(sampling, start)])
            answer.append(token)
            tokens = (token,)
        return answer
