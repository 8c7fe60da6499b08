"""Brings one request into a stage, and holds it there until the curtain rises."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from answer_stream import AnswerStream
from fault_fleet import POLL_SECONDS, FaultFleet, token_ids
from fault_matrix import Cell, Stage
from fault_plan import last_sighting

PROMPT = token_ids(5, 270)
NUM_TOKENS = 20
QUEUE_PROMPT = token_ids(6, 380)  # long enough to hold the prefill worker's batch for a while
QUEUE_TOKENS = 4
POOL_PROMPT = token_ids(7, 32)
POOL_TOKENS = 1300  # with its prompt it is promised nearly the whole pool of the decode worker
STRUCK_AT_TOKEN = 6
STAGE_SECONDS = 30.0

Workers = dict[str, dict[str, Any]]


@dataclass(slots=True)
class Scene:
    """`answer` is struck; `beside` must come through with it; `fillers` only take up room."""

    fleet: FaultFleet
    answer: AnswerStream
    beside: list[AnswerStream] = field(default_factory=list)
    fillers: list[AnswerStream] = field(default_factory=list)

    def let_go(self, *, keep: tuple[str, ...] = ()) -> None:
        """Nothing holds the request any more but what `keep` names in the plans."""
        for filler in self.fillers:
            filler.hang_up()
        for plan in self.fleet.plans.values():
            plan.clear(keep)

    @property
    def streams(self) -> list[AnswerStream]:
        return [self.answer, *self.beside, *self.fillers]


async def bring(fleet: FaultFleet, cell: Cell) -> Scene:
    match cell.stage:
        case Stage.QUEUED:
            return await _queued(fleet)
        case Stage.CREDIT:
            return await _waiting_for_credit(fleet)
        case Stage.PREFILLING:
            return await _prefilling(fleet)
        case Stage.TRANSFER:
            return await _transferring(fleet)
        case Stage.BEFORE_RELEASE:
            return await _before_release(fleet)
        case Stage.STREAMING:
            return await _streaming(fleet)


def _gauge(worker: str, name: str, least: float) -> Callable[[Workers], bool]:
    return lambda workers: workers[worker]["gauges"][name] >= least


async def _until(fleet: FaultFleet, stage: Stage, *conditions: Callable[[Workers], bool]) -> None:
    await fleet.until(stage, lambda workers: all(c(workers) for c in conditions), STAGE_SECONDS)


async def _queued(fleet: FaultFleet) -> Scene:
    fleet.plans["prefill-0"].change(step_s=0.4)
    first = fleet.ask(QUEUE_PROMPT, QUEUE_TOKENS)
    await _until(fleet, Stage.QUEUED, _gauge("prefill-0", "running_requests", 1))
    scene = Scene(fleet, fleet.ask(PROMPT, NUM_TOKENS), beside=[first])
    await _until(fleet, Stage.QUEUED, _gauge("prefill-0", "leases", 2))
    return scene


async def _waiting_for_credit(fleet: FaultFleet) -> Scene:
    fleet.plans["decode-0"].change(step_s=0.1)
    filler = fleet.ask(POOL_PROMPT, POOL_TOKENS)
    await _tokens(filler, 2)
    scene = Scene(fleet, fleet.ask(PROMPT, NUM_TOKENS), fillers=[filler])
    waiting = (_gauge(worker, "waiting_requests", 1) for worker in ("prefill-0", "decode-0"))
    await _until(fleet, Stage.CREDIT, *waiting)
    return scene


async def _prefilling(fleet: FaultFleet) -> Scene:
    computed = await _computed(fleet)
    fleet.plans["prefill-0"].change(step_s=0.4)
    scene = Scene(fleet, fleet.ask(PROMPT, NUM_TOKENS))
    await _until(fleet, Stage.PREFILLING, lambda w: _context(w) >= computed + 64)
    return scene


async def _transferring(fleet: FaultFleet) -> Scene:
    computed = await _computed(fleet)
    fleet.plans["decode-0"].change(reads="stall")
    scene = Scene(fleet, fleet.ask(PROMPT, NUM_TOKENS))
    await _until(
        fleet,
        Stage.TRANSFER,
        _gauge("decode-0", "reads_in_flight", 1),
        lambda w: _context(w) >= computed + len(PROMPT),
    )
    return scene


async def _before_release(fleet: FaultFleet) -> Scene:
    fleet.plans["prefill-0"].change(held=("release",))
    scene = Scene(fleet, fleet.ask(PROMPT, NUM_TOKENS))
    async with asyncio.timeout(STAGE_SECONDS):
        while True:
            seen = last_sighting(fleet.folder, "prefill-0")
            if seen is not None and "release" in seen.held:
                return scene
            await asyncio.sleep(POLL_SECONDS)


async def _streaming(fleet: FaultFleet) -> Scene:
    fleet.plans["decode-0"].change(step_s=0.05)
    scene = Scene(fleet, fleet.ask(PROMPT, NUM_TOKENS))
    await _tokens(scene.answer, STRUCK_AT_TOKEN)
    return scene


def _context(workers: Workers) -> float:
    return float(workers["prefill-0"]["counters"]["context_tokens"])


async def _computed(fleet: FaultFleet) -> float:
    return _context(await fleet.ready())


async def _tokens(answer: AnswerStream, count: int) -> None:
    async with asyncio.timeout(STAGE_SECONDS):
        while len(answer.tokens) < count:
            if answer.is_over:
                raise RuntimeError(f"ended before its stage: {answer.error or answer.finish}")
            await asyncio.sleep(POLL_SECONDS / 5)
