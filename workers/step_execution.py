"""Runs one StepPlan on the model and draws the tokens, with a barrier around each request."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from segue.workers.batch import PackedBatch, SequenceSlice
from segue.workers.kvcache.block_operations import BlockOperation
from segue.workers.sampler import InvalidLogits, SamplingRow, sample
from segue.workers.scheduler.plan import Scheduled, StepPlan
from segue.workers.sequence import Sequence as TokenSequence

logger = logging.getLogger(__name__)


class Runner(Protocol):
    def execute(self, batch: PackedBatch) -> torch.Tensor:
        """Float32 logits, one row for each slice that samples, in batch order."""
        ...

    def copy_blocks(self, operations: Sequence[BlockOperation]) -> None:
        """Carry out the operations in their order, before what `execute` does next."""
        ...


@dataclass(slots=True)
class StepResult:
    """The token of each sequence that sampled, and why others failed."""

    tokens: dict[TokenSequence, int] = field(default_factory=dict)
    failures: dict[TokenSequence, str] = field(default_factory=dict)


class StepExecution:
    """`checksum` gives one checksum a block; None: checksums are off."""

    def __init__(
        self, runner: Runner, checksum: Callable[[Sequence[int]], tuple[int, ...]] | None
    ) -> None:
        self._runner = runner
        self._checksum = checksum

    def checksums(self, block_ids: Sequence[int]) -> tuple[int, ...]:
        return self._checksum(block_ids) if self._checksum else ()

    def copy_blocks(self, operations: Sequence[BlockOperation]) -> None:
        self._runner.copy_blocks(operations)

    def run(self, plan: StepPlan) -> StepResult:
        """Run the step as one batch; if that raises, each sequence alone.

        Running a slice again is harmless: it writes the same KV to the same slots.
        """
        result = StepResult()
        try:
            self._run_batch(plan.context, plan.generation, result)
        except Exception as error:
            if len(plan.context) + len(plan.generation) == 1:
                (only,) = (*plan.context, *plan.generation)
                self._blame(only, error, result)
                return result
            logger.warning("a step of several sequences failed; running each alone: %r", error)
            result = StepResult()
            for item in plan.context:
                self._run_alone(item, True, result)
            for item in plan.generation:
                self._run_alone(item, False, result)
        return result

    def _run_alone(self, item: Scheduled, is_context: bool, result: StepResult) -> None:
        try:
            if is_context:
                self._run_batch((item,), (), result)
            else:
                self._run_batch((), (item,), result)
        except Exception as error:
            self._blame(item, error, result)

    def _blame(self, item: Scheduled, error: Exception, result: StepResult) -> None:
        logger.error("request %s failed in its step", item.sequence.attempt, exc_info=error)
        result.failures[item.sequence] = f"{type(error).__name__}: {error}"

    def _run_batch(
        self,
        context: tuple[Scheduled, ...],
        generation: tuple[Scheduled, ...],
        result: StepResult,
    ) -> None:
        items = (*context, *generation)
        logits = self._runner.execute(PackedBatch(tuple(map(_slice, items)), len(context)))
        rows = [item.sequence for item in items if item.samples]
        self._draw(rows, logits, result)

    def _draw(self, rows: list[TokenSequence], logits: torch.Tensor, result: StepResult) -> None:
        if not rows:
            return
        specs = [_sampling_row(sequence) for sequence in rows]
        try:
            tokens = sample(logits, specs)
        except InvalidLogits as error:
            bad = set(error.rows)
            for index in bad:
                result.failures[rows[index]] = "the model produced logits that are not finite"
            good = [index for index in range(len(rows)) if index not in bad]
            self._draw([rows[index] for index in good], logits[good], result)
            return
        result.tokens.update(zip(rows, tokens, strict=True))


def _slice(item: Scheduled) -> SequenceSlice:
    sequence = item.sequence
    return SequenceSlice(
        sequence.tokens[item.start : item.end], item.start, sequence.block_ids, item.samples
    )


def _sampling_row(sequence: TokenSequence) -> SamplingRow:
    stop = sequence.request.stop
    forbids = stop.forbids_stop(sequence.num_produced)
    return SamplingRow(
        params=sequence.request.sampling,
        position=len(sequence.tokens),
        forbidden=stop.stop_token_ids if forbids else frozenset(),
    )
