"""Workers are killed where the fault matrix does not look: sampled text, company, nobody left.

Whatever happens the client gets the text of an undisturbed run, and who survives lets go of all.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from local_fleet import TOKEN, Answer, LocalFleet

from segue.cluster.errors import Unavailable
from segue.cluster.request import SamplingParams
from segue.cluster.rpc.worker_client import WorkerClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUM_TOKENS = 20
PROMPT = [random.Random(5).randrange(20, 49_000) for _ in range(270)]
OTHER = [random.Random(6).randrange(20, 49_000) for _ in range(40)]
GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=4711)
Texts = dict[SamplingParams, list[int]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(fleet: LocalFleet) -> AsyncIterator[Texts]:
    answers = await asyncio.gather(
        *(fleet.ask(PROMPT, NUM_TOKENS, sampling=sampling) for sampling in (GREEDY, SEEDED))
    )
    assert not fleet.journeys.counters.failures
    texts = {GREEDY: answers[0].tokens, SEEDED: answers[1].tokens}
    assert texts[GREEDY] != texts[SEEDED]
    yield texts


async def until_prefilling(fleet: LocalFleet, num_tokens: int) -> None:
    """Until the prefill worker has computed so many more tokens of prompts."""
    worker = fleet.worker("prefill")
    assert worker.peer is not None
    client = WorkerClient(worker.peer, TOKEN)
    try:
        before = (await client.status(deadline_s=5)).counters["context_tokens"]
        async with asyncio.timeout(60):
            while True:
                status = await client.status(deadline_s=5)
                if status.counters["context_tokens"] >= before + num_tokens:
                    return
                await asyncio.sleep(0.01)
    finally:
        await client.close()


class Strike:
    """Does something to workers once, at a stage of one request."""

    def __init__(self, fleet: LocalFleet, stage: str, act: Callable[[], object]) -> None:
        self._fleet = fleet
        self._stage = stage
        self._act = act
        self.done = False

    def _now(self) -> None:
        if not self.done:
            self.done = True
            self._act()

    def on_token(self, answer: Answer) -> None:
        wanted = {"first token": 1, "mid-stream": 8}.get(self._stage)
        if wanted is not None and len(answer.tokens) >= wanted:
            self._now()

    async def ask(self, sampling: SamplingParams = GREEDY) -> Answer:
        prefilling = asyncio.create_task(until_prefilling(self._fleet, 128))
        await asyncio.sleep(0.1)  # the count before is known
        asking = asyncio.create_task(
            self._fleet.ask(PROMPT, NUM_TOKENS, sampling=sampling, on_token=self.on_token)
        )
        if self._stage == "before":
            await asyncio.sleep(0.02)
            self._now()
        elif self._stage == "mid-prefill":
            await prefilling
            assert not asking.done()
            self._now()
        prefilling.cancel()
        await asyncio.gather(prefilling, return_exceptions=True)
        answer = await asking
        assert self.done
        return answer


def num_failures(fleet: LocalFleet) -> int:
    return sum(fleet.journeys.counters.failures.values())


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("stage", "sampling"),
    [
        ("before", GREEDY),
        ("first token", SEEDED),
        ("mid-stream", SEEDED),
    ],
    ids=["before", "first token", "mid-stream"],
)
async def test_kill(
    fleet: LocalFleet, undisturbed: Texts, role: str, stage: str, sampling: SamplingParams
) -> None:
    await fleet.ready(2)
    failures = num_failures(fleet)
    strike = Strike(fleet, stage, lambda: fleet.kill(role))
    answer = await strike.ask(sampling)
    assert answer.tokens == undisturbed[sampling]
    if role == "prefill" and stage == "mid-stream":
        assert num_failures(fleet) == failures, "nobody needed it any more"
    elif not (role == "prefill" and stage == "first token"):  # then the prompt may be there or not
        assert num_failures(fleet) > failures
    await fleet.settled()


async def test_a_stream_beside_it_is_unharmed(fleet: LocalFleet, undisturbed: Texts) -> None:
    """The prefill worker dies while it reads another prompt; what is written goes on."""
    await fleet.ready(2)
    expected = await fleet.ask(OTHER, 40)
    failures = num_failures(fleet)
    started = asyncio.Event()
    beside = asyncio.create_task(fleet.ask(OTHER, 40, on_token=lambda answer: started.set()))

    def act() -> None:
        assert not beside.done()
        fleet.kill("prefill")

    async with asyncio.timeout(30):
        await started.wait()
    answer = await Strike(fleet, "mid-prefill", act).ask()
    assert answer.tokens == undisturbed[GREEDY]
    assert (await beside).tokens == expected.tokens
    assert num_failures(fleet) == failures + 1
    await fleet.settled()


async def test_both_are_killed_at_once(fleet: LocalFleet, undisturbed: Texts) -> None:
    """A stream goes on once one is back; a new request is told at once that nobody is there."""
    await fleet.ready(2)
    latecomers: list[asyncio.Task[Answer]] = []

    async def ask_when_nobody_is_left() -> Answer:
        while any(fleet.links.usable(w.identity) for w in fleet.watcher.view.ready_workers()):
            await asyncio.sleep(0.01)
        return await fleet.ask(OTHER, 4)

    def act() -> None:
        fleet.kill("prefill")
        fleet.kill("decode")
        latecomers.append(asyncio.create_task(ask_when_nobody_is_left()))

    answer = await Strike(fleet, "mid-stream", act).ask()
    assert answer.tokens == undisturbed[GREEDY]
    (latecomer,) = latecomers
    with pytest.raises(Unavailable, match="no worker is ready"):
        await latecomer
    await fleet.settled()


async def test_successors_meet_without_being_asked_to(fleet: LocalFleet) -> None:
    """Workers read each other's pattern as soon as they know of each other."""
    await fleet.ready(2)
    async with asyncio.timeout(20):
        while not (pairs := [pair for s in await fleet.statuses() for pair in s.pairs]):
            await asyncio.sleep(0.1)
    (pair,) = pairs
    assert pair.source == fleet.worker("prefill").identity and not pair.is_refused
    assert pair.is_measured and pair.transport in ("shm", "tcp") and pair.gigabytes_per_second
