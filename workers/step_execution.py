"""Runs one StepPlan on the model and draws the tokens, with a barrier around each request."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from segue.workers.batch import PackedBatch, SequenceSlice, row_slice
from segue.workers.generation_batch import NO_TOKEN, GenerationBatch, Ids
from segue.workers.kvcache.block_operations import BlockOperation
from segue.workers.sampler import InvalidLogits, SamplingRow, sample
from segue.workers.scheduler.plan import Scheduled, StepPlan
from segue.workers.sequence import Sequence as TokenSequence

logger = logging.getLogger(__name__)


LayerNews = Callable[[int], None]  # the keys and values of so many layers will not change any more


class Runner(Protocol):
    def execute(self, batch: PackedBatch, on_layers: LayerNews | None = None) -> torch.Tensor:
        """Float32 logits, one row for each slice that samples, then one for each row.

        When it returns, the device has done all of it, whether or not anything samples: what is
        told then may be read by others at once.
        `on_layers` is called in this thread, while the rest is computed, with ever more layers.
        """
        ...

    def copy_blocks(self, operations: Sequence[BlockOperation]) -> None:
        """Carry out the operations in their order, before what `execute` does next.

        When it returns, they are done: others may write into what they read, at once.
        """
        ...


@dataclass(slots=True)
class StepResult:
    """The token of each context that ended, those of all rows, and why others failed.

    A failed row's token means nothing. `repeated`: keys and values were computed more than once.
    """

    tokens: dict[TokenSequence, int] = field(default_factory=dict)
    generated: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    failures: dict[TokenSequence, str] = field(default_factory=dict)
    repeated: bool = False


class StepExecution:
    """`checksum` gives one checksum a block; None: checksums are off."""

    def __init__(
        self, runner: Runner, checksum: Callable[[Sequence[int]], Sequence[int]] | None
    ) -> None:
        self._runner = runner
        self._checksum = checksum
        self._sampling = _RowSampling()

    def checksums(self, block_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._checksum(block_ids)) if self._checksum else ()

    def copy_blocks(self, operations: Sequence[BlockOperation]) -> None:
        self._runner.copy_blocks(operations)

    def run(
        self, plan: StepPlan, rows: GenerationBatch, on_layers: LayerNews | None = None
    ) -> StepResult:
        """Run the step as one batch; if that raises, each sequence alone, without news of layers.

        Running a slice again is harmless: it writes KV of the same meaning to the same slots. Of
        the same bytes it may not be.
        """
        try:
            return self._run_whole(plan.context, rows, on_layers)
        except Exception as error:
            result = StepResult(generated=np.full(len(rows), NO_TOKEN, np.int64), repeated=True)
            everybody = (*(item.sequence for item in plan.context), *rows.sequences)
            if len(everybody) == 1:
                self._blame(everybody[0], error, result)
                return result
            logger.warning("a step of several sequences failed; running each alone: %r", error)
            for item in plan.context:
                if (token := self._run_alone(item.sequence, _slice(item), 1, result)) is not None:
                    result.tokens[item.sequence] = token
            for row, sequence in enumerate(rows.sequences):
                token = self._run_alone(sequence, row_slice(rows, row), 0, result)
                if token is not None:
                    result.generated[row] = token
            return result

    def _run_whole(
        self, context: tuple[Scheduled, ...], rows: GenerationBatch, on_layers: LayerNews | None
    ) -> StepResult:
        batch = PackedBatch(tuple(map(_slice, context)), len(context), rows if rows else None)
        logits = self._runner.execute(batch, on_layers)
        ending = [item.sequence for item in context if item.samples]
        specs = [_sampling_row(sequence, len(sequence.tokens)) for sequence in ending]
        specs += self._sampling.specs(rows)
        result = StepResult()
        drawn = _draw((*ending, *rows.sequences), specs, logits, result)
        result.tokens = {s: t for s, t in zip(ending, drawn, strict=False) if t != NO_TOKEN}
        result.generated = np.array(drawn[len(ending) :], np.int64)
        return result

    def _run_alone(
        self, sequence: TokenSequence, piece: SequenceSlice, num_context: int, result: StepResult
    ) -> int | None:
        """The token it drew. None: it drew none, or failed."""
        try:
            logits = self._runner.execute(PackedBatch((piece,), num_context))
            if not piece.samples:
                return None
            spec = _sampling_row(sequence, piece.end)
            (token,) = _draw((sequence,), [spec], logits, result)
            return None if token == NO_TOKEN else token
        except Exception as error:
            self._blame(sequence, error, result)
            return None

    def _blame(self, sequence: TokenSequence, error: Exception, result: StepResult) -> None:
        logger.error("request %s failed in its step", sequence.attempt, exc_info=error)
        result.failures[sequence] = f"{type(error).__name__}: {error}"


class _RowSampling:
    """What each row is sampled with; made anew only where the position matters."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._specs: list[SamplingRow] = []
        self._positioned: list[int] = []  # rows that draw at random, or may not stop yet

    def specs(self, rows: GenerationBatch) -> list[SamplingRow]:
        if self._version != rows.version:
            self._version = rows.version
            members = rows.sequences
            self._specs = [_sampling_row(sequence, 0) for sequence in members]
            self._positioned = [row for row, s in enumerate(members) if _needs_position(s)]
        for row in self._positioned:
            position = int(rows.positions[row]) + 1
            self._specs[row] = _sampling_row(rows.sequences[row], position)
        return self._specs


def _draw(
    rows: tuple[TokenSequence, ...],
    specs: list[SamplingRow],
    logits: torch.Tensor,
    result: StepResult,
) -> list[int]:
    """One token a row; NO_TOKEN, and the reason in `result`, where the logits are no good."""
    if not rows:
        return []
    try:
        return sample(logits, specs)
    except InvalidLogits as error:
        bad = set(error.rows)
        for index in bad:
            result.failures[rows[index]] = "the model produced logits that are not finite"
        good = [index for index in range(len(rows)) if index not in bad]
        tokens = [NO_TOKEN] * len(rows)
        drawn = _draw(tuple(rows[i] for i in good), [specs[i] for i in good], logits[good], result)
        for index, token in zip(good, drawn, strict=True):
            tokens[index] = token
        return tokens


def _slice(item: Scheduled) -> SequenceSlice:
    sequence = item.sequence
    return SequenceSlice(
        sequence.tokens[item.start : item.end], item.start, sequence.block_ids, item.samples
    )


def _needs_position(sequence: TokenSequence) -> bool:
    request = sequence.request
    return request.sampling.temperature > 0 or request.stop.min_tokens > 0


def _sampling_row(sequence: TokenSequence, position: int) -> SamplingRow:
    """`position`: where the new token will stand; 0 where it makes no difference."""
    request = sequence.request
    forbids = request.stop.forbids_stop(position - request.num_prompt_tokens)
    if not position:
        forbids = False
    return SamplingRow(
        params=request.sampling,
        position=position,
        forbidden=request.stop.stop_token_ids if forbids else frozenset(),
    )
