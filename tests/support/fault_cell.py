"""Plays one cell of the matrix on a fleet and judges what came of it."""

import asyncio
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from answer_stream import AnswerStream
from fault_fleet import FaultFleet
from fault_matrix import Cell, Fault, bound_s, may_fail
from fault_scene import NUM_TOKENS, PROMPT, QUEUE_PROMPT, QUEUE_TOKENS, Scene, Workers, bring
from fault_strike import strike

ANSWER_SECONDS = 75.0  # more than a request's deadline
SETTLE_SECONDS = 30.0
CANARY_PROMPT, CANARY_TOKENS = PROMPT[:20], 3


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The texts without any fault, and how long both prompts take to be read."""

    answer: tuple[int, ...]
    beside: tuple[int, ...]
    canary: tuple[int, ...]
    reading_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    cell: Cell
    told: str = ""  # what the client got
    seconds: float = 0.0  # its longest wait from the strike on
    bound: float = 0.0
    faults: tuple[str, ...] = ()  # of ours: why the cell failed

    @property
    def passed(self) -> bool:
        return not self.faults


async def undisturbed(fleet: FaultFleet) -> Undisturbed:
    runs = [(PROMPT, NUM_TOKENS), (QUEUE_PROMPT, QUEUE_TOKENS), (CANARY_PROMPT, CANARY_TOKENS)]
    began, reading_s = time.monotonic(), 0.0
    texts: list[tuple[int, ...]] = []
    for prompt, count in runs:
        began = time.monotonic()
        answer = fleet.ask(prompt, count)
        await answer.wait(ANSWER_SECONDS)
        if answer.error or len(answer.tokens) != count:
            raise RuntimeError(f"the undisturbed run failed: {answer.error or answer.tokens}")
        reading_s += answer.times[0] - began
        texts.append(tuple(answer.tokens))
    text, beside, canary = texts
    return Undisturbed(text, beside, canary, reading_s)


async def play(fleet: FaultFleet, cell: Cell, expected: Undisturbed) -> Outcome:
    """Never raises: what cannot even be played has failed."""
    outcome = Outcome(cell, bound=bound_s(cell.component, cell.fault) + 2 * expected.reading_s)
    scene: Scene | None = None
    try:
        noticed = _noticed(await fleet.ready())
        fleet.grown()
        scene = await bring(fleet, cell)
        outcome = await _struck(scene, cell, expected, outcome)
        outcome = await _cleared_up(fleet, expected, outcome)
        if cell.fault is Fault.CORRUPTED_BLOCK and _noticed(await fleet.ready()) == noticed:
            outcome = replace(outcome, faults=(*outcome.faults, "nobody noticed the corruption"))
        return outcome
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return replace(outcome, faults=(*outcome.faults, told))
    finally:
        if scene is not None:
            scene.let_go()
            for stream in scene.streams:
                stream.hang_up()
        fleet.network.heal()


def _noticed(workers: Workers) -> float:
    return float(workers["decode-0"]["counters"]["fence_after_read/content"])


async def _struck(scene: Scene, cell: Cell, expected: Undisturbed, outcome: Outcome) -> Outcome:
    answer = scene.answer
    if answer.is_over:
        raise RuntimeError(f"it ended before it was struck: {answer.error or answer.finish}")
    struck_at = time.monotonic()
    undo = await strike(scene, cell)
    if cell.fault is Fault.HANG_UP:
        await asyncio.gather(answer.task or asyncio.sleep(0), return_exceptions=True)
    else:
        await answer.wait(ANSWER_SECONDS)
    await undo()
    seconds = answer.longest_pause(struck_at)
    faults = list(_wrong_text(cell, answer, expected.answer))
    for other in scene.beside:
        await other.wait(ANSWER_SECONDS)
        faults += [f"beside it: {fault}" for fault in _wrong_text(cell, other, expected.beside)]
    if seconds > outcome.bound:
        faults.append(f"took {seconds:.1f} s, bound {outcome.bound:.1f} s")
    told = "hung up" if cell.fault is Fault.HANG_UP else answer.error or "equal text"
    return replace(outcome, told=told, seconds=seconds, faults=tuple(faults))


def _wrong_text(cell: Cell, answer: AnswerStream, expected: Sequence[int]) -> list[str]:
    tokens = answer.tokens
    if tokens != list(expected[: len(tokens)]):
        return [f"wrong text: {tokens} instead of {list(expected)}"]
    if cell.fault is Fault.HANG_UP or (may_fail(cell.component, cell.fault) and answer.error):
        return []
    if answer.error:
        return [f"error: {answer.error}"]
    return [] if len(tokens) == len(expected) else [f"only {len(tokens)} of {len(expected)} tokens"]


async def _cleared_up(fleet: FaultFleet, expected: Undisturbed, outcome: Outcome) -> Outcome:
    """Everybody serves again, and whoever lived through it holds nothing of it."""
    faults = list(outcome.faults)
    await fleet.ready()
    canary = fleet.ask(CANARY_PROMPT, CANARY_TOKENS)
    await canary.wait(ANSWER_SECONDS)
    faults += [f"afterwards: {f}" for f in _wrong_text(outcome.cell, canary, expected.canary)]
    if canary.error:
        faults.append(f"afterwards: {canary.error}")
    end = time.monotonic() + SETTLE_SECONDS
    while left := await _left_over(fleet):
        if time.monotonic() > end:
            faults.append(f"left over: {left}")
            break
        await asyncio.sleep(0.1)
    return replace(outcome, faults=tuple(faults))


async def _left_over(fleet: FaultFleet) -> dict[str, object]:
    return {**await fleet.held(), **fleet.grown()}
