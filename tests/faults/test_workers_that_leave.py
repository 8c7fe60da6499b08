"""Running requests move, and workers drain, on order and on SIGTERM: nobody notices but the fleet.

Two decode workers, so that there is somewhere to go.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from local_fleet import Answer, LocalFleet, local_fleet

from segue.cluster.config.file import parse_config
from segue.cluster.fleet import DeathCause, WorkerState, WorkerView
from segue.cluster.request import SamplingParams
from segue.router.operations import Operations

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINE = {"enable_prefix_caching": False, "chunk_size": 64, "num_kv_blocks": 256}
CONFIG = {
    "pools": {
        "prefill": {"role": "prefill", "engine": ENGINE},
        "decode": {"role": "decode", "num_replicas": 2, "engine": ENGINE},
    },
    "control": {"drain_timeout_s": 60},
    "gateway": {"recovery": {"worker_wait_s": 60}, "admission": {"request_timeout_s": 90}},
}
NUM_TOKENS = 40
PROMPT = [random.Random(5).randrange(20, 49_000) for _ in range(270)]
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=4711)
LEAVES_WITHIN_S = 45.0  # moved or finished, on a machine that has other things to do


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(bundled_model: Path) -> AsyncIterator[LocalFleet]:
    async with local_fleet(parse_config(CONFIG), bundled_model) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(fleet: LocalFleet) -> list[int]:
    return (await fleet.ask(PROMPT, NUM_TOKENS, sampling=SEEDED)).tokens


@pytest.fixture
def no_failures(fleet: LocalFleet) -> Callable[[], bool]:
    """Whether no attempt has failed since."""
    before = sum(fleet.journeys.counters.failures.values())
    return lambda: sum(fleet.journeys.counters.failures.values()) == before


def operations(fleet: LocalFleet) -> Operations:
    view = fleet.watcher
    return Operations(fleet.journeys, fleet.migrations, fleet.links, lambda: view.view)


def newest(fleet: LocalFleet, worker_id: str) -> WorkerView:
    return next(w for w in fleet.watcher.view.workers if w.identity.worker_id == worker_id)


def writer_of(fleet: LocalFleet, request_id: str) -> str:
    flight = fleet.journeys.running[request_id].flight
    assert flight is not None
    return flight.writer.worker_id


async def until(condition: Callable[[], object], seconds: float = LEAVES_WITHIN_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.05)


async def has_left(fleet: LocalFleet, leaver: WorkerView) -> WorkerView:
    """Wait until that life is over and the next one is ready; returns the next."""
    await until(lambda: newest(fleet, leaver.identity.worker_id).identity != leaver.identity)
    following = newest(fleet, leaver.identity.worker_id)
    assert following.deaths[DeathCause.DRAINED] >= 1, following
    await fleet.ready(3)
    return newest(fleet, leaver.identity.worker_id)


class Stream:
    """One answer that is being written, and the moment it has come to `at` tokens."""

    def __init__(self, fleet: LocalFleet, name: str, at: int, num_tokens: int = NUM_TOKENS) -> None:
        self.name = name
        self.reached = asyncio.Event()
        self._at = at
        self.task = asyncio.create_task(
            fleet.ask(PROMPT, num_tokens, sampling=SEEDED, request_id=name, on_token=self._on_token)
        )

    def _on_token(self, answer: Answer) -> None:
        if len(answer.tokens) >= self._at:
            self.reached.set()

    async def come_so_far(self) -> None:
        async with asyncio.timeout(60):
            await self.reached.wait()


async def test_a_stream_moves(
    fleet: LocalFleet, undisturbed: list[int], no_failures: Callable[[], bool]
) -> None:
    stream = Stream(fleet, "moving", 5)
    await stream.come_so_far()
    source = writer_of(fleet, "moving")
    target = {"decode-0": "decode-1", "decode-1": "decode-0"}[source]
    done = await operations(fleet).migrate("moving", target)
    assert (done.source.worker_id, done.target.worker_id) == (source, target)
    assert done.report is not None and done.report.num_blocks >= len(PROMPT) // 16
    assert done.report.num_blocks_stopped < done.report.num_blocks
    assert done.pause_s is not None
    assert writer_of(fleet, "moving") == target
    print(f"{done.report}; pause {done.pause_s * 1e3:.1f} ms")
    assert (await stream.task).tokens == undisturbed
    assert no_failures()
    await fleet.settled()


async def test_a_prompt_that_waits_for_room_goes_where_some_appears(
    fleet: LocalFleet, undisturbed: list[int], no_failures: Callable[[], bool]
) -> None:
    """Both decode workers are promised away; then one of them has room again."""
    fillers = [Stream(fleet, f"filler-{number}", 1, num_tokens=3700) for number in range(2)]
    for filler in fillers:
        await filler.come_so_far()
    late = Stream(fleet, "late", 1)
    await until(lambda: "late" in fleet.journeys.running)
    waits_at = writer_of(fleet, "late")
    room_at = {"decode-0": "decode-1", "decode-1": "decode-0"}[waits_at]
    gone = next(filler for filler in fillers if writer_of(fleet, filler.name) == room_at)
    await asyncio.wait({late.task}, timeout=2.0)  # long enough for a view or two
    assert not late.reached.is_set()
    gone.task.cancel()
    await late.come_so_far()
    assert writer_of(fleet, "late") == room_at
    assert (await late.task).tokens == undisturbed
    assert fleet.journeys.counters.rebindings["moved"] == 1
    for filler in fillers:
        filler.task.cancel()
    await asyncio.gather(*(filler.task for filler in fillers), return_exceptions=True)
    assert no_failures()
    await fleet.settled()


async def test_a_decode_worker_with_four_streams_drains(
    fleet: LocalFleet, undisturbed: list[int], no_failures: Callable[[], bool]
) -> None:
    await fleet.ready(3)
    streams = [Stream(fleet, f"s{i}", 3) for i in range(4)]
    for stream in streams:
        await stream.come_so_far()
    leaver = newest(fleet, writer_of(fleet, "s0"))
    before = fleet.journeys.counters.migrations["moved"]
    on_it = sum(writer_of(fleet, s.name) == leaver.identity.worker_id for s in streams)
    assert on_it >= 1
    worker = await operations(fleet).drain(leaver.identity.worker_id)
    assert worker.identity == leaver.identity
    await until(lambda: newest(fleet, leaver.identity.worker_id).state is not WorkerState.READY, 5)
    late = await fleet.ask(PROMPT[:40], 3)  # new work goes elsewhere
    assert len(late.tokens) == 3
    for stream in streams:
        assert (await stream.task).tokens == undisturbed
    assert fleet.journeys.counters.migrations["moved"] > before
    await has_left(fleet, leaver)
    assert no_failures()
    await fleet.settled()


async def test_sigterm_while_a_decode_worker_writes(
    fleet: LocalFleet, undisturbed: list[int], no_failures: Callable[[], bool]
) -> None:
    await fleet.ready(3)
    stream = Stream(fleet, "term", 5)
    await stream.come_so_far()
    leaver = newest(fleet, writer_of(fleet, "term"))
    os.kill(leaver.pid, signal.SIGTERM)
    assert (await stream.task).tokens == undisturbed
    await has_left(fleet, leaver)
    assert no_failures()
    await fleet.settled()


async def test_sigterm_while_a_prefill_worker_hands_over(
    fleet: LocalFleet, undisturbed: list[int], no_failures: Callable[[], bool]
) -> None:
    """It reads its prompt to the end and stays until its lease has ended."""
    await fleet.ready(3)
    leaver = fleet.worker("prefill")
    stream = Stream(fleet, "handing", 1)
    while not any(s.gauges["attempts"] for s in await fleet.statuses() if s.role == "prefill"):
        assert not stream.task.done()
    os.kill(leaver.pid, signal.SIGTERM)
    assert (await stream.task).tokens == undisturbed
    await has_left(fleet, leaver)
    assert no_failures()
    await fleet.settled()


async def test_a_second_sigterm_does_not_wait(fleet: LocalFleet, undisturbed: list[int]) -> None:
    """What was on it is written again elsewhere."""
    await fleet.ready(3)
    leaver = fleet.worker("prefill")
    stream = Stream(fleet, "twice", 1)
    await until(lambda: "twice" in fleet.journeys.running)
    for _ in range(2):
        os.kill(leaver.pid, signal.SIGTERM)
        await asyncio.sleep(0.05)
    assert (await stream.task).tokens == undisturbed
    await until(lambda: newest(fleet, "prefill-0").identity != leaver.identity)
    await fleet.ready(3)
    await fleet.settled()
