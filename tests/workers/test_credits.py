"""Credits from asking to their end: seen while they wait, counted once, never lost."""

import asyncio

import pytest
from engine_parts import expected_tokens
from worker_pair import Node, NodeKind, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import Unavailable
from segue.cluster.handoff import Assignment, Reservation
from segue.cluster.identity import Peer
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.deploy.status_command import credits_held


def seen(node: Node) -> dict[str, float]:
    """What the node says of credits, zeros left out."""
    status = node.service.status_now()
    return {
        name: value
        for name, value in (*status.gauges.items(), *status.counters.items())
        if name.startswith("credit") and value and "seconds" not in name
    }


def reservation(source: Peer, wait_seconds: float = 5.0) -> Reservation:
    request = GenerationRequest("r", tuple(range(30)), SamplingParams(), StopRule(5))
    return Reservation(Assignment(request, 1, (), "gateway", 20.0), source, "lease", wait_seconds)


async def test_a_wait_and_its_end_are_seen() -> None:
    transfer = TransferConfig(transport="loopback", credit_wait_s=0.5)
    async with worker_pair(transfer, num_blocks=8) as pair:
        pair.decode.runner.gate.clear()
        holder = asyncio.create_task(pair.ask(range(20), 8))
        await pair.until(lambda: pair.decode.engine.scheduler.generation)
        assert seen(pair.decode) == {"credits_granted": 1}
        late = asyncio.create_task(pair.ask(range(50, 70), 8))
        await pair.until(lambda: seen(pair.decode).get("credits_waiting"))
        gauges = pair.decode.service.status_now().gauges
        assert 0 < gauges["credit_next_deadline_seconds"] <= 0.5
        assert gauges["credit_oldest_wait_seconds"] > 0
        assert "1 waiting" in credits_held(gauges) and "gives up in 0s" in credits_held(gauges)
        with pytest.raises(Unavailable, match="no room within 0.5 s"):
            await late
        pair.decode.runner.gate.set()
        await holder
        await pair.settled()
        assert seen(pair.decode) == {"credits_granted": 1, "credits_refused_credit_timeout": 1}
        assert credits_held(pair.decode.service.status_now().gauges) == ""


@pytest.mark.parametrize("source_is_gone", [False, True])
async def test_a_credit_that_nobody_uses_is_taken_back_within_its_lease(
    source_is_gone: bool,
) -> None:
    transfer = TransferConfig(transport="loopback", lease_s=0.6)
    async with worker_pair(transfer) as pair:
        asked = reservation(pair.prefill.peer)  # but its source opens no lease, nor announces
        outcome = await pair.decode.client.reserve(asked, deadline_s=5)
        assert outcome.failure is None and seen(pair.decode)["credits_held"] == 1
        assert credits_held(pair.decode.service.status_now().gauges) == "1 held"
        if source_is_gone:
            await pair.prefill.server.stop()
        await pair.until(lambda: seen(pair.decode).get("credits_expired"), timeout_s=3.0)
        await pair.settled(pair.decode, timeout_s=6.0)  # it also tells the source, which is gone
        assert seen(pair.decode) == {"credits_granted": 1, "credits_expired": 1}


async def test_a_caller_that_goes_away_is_counted_as_such() -> None:
    async with worker_pair(num_blocks=8) as pair:
        pair.decode.runner.gate.clear()
        holder = asyncio.create_task(pair.ask(range(20), 8))
        await pair.until(lambda: pair.decode.engine.scheduler.generation)
        call = asyncio.create_task(
            pair.decode.client.reserve(reservation(pair.prefill.peer), deadline_s=5)
        )
        await pair.until(lambda: seen(pair.decode).get("credits_waiting"))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await pair.until(lambda: seen(pair.decode).get("credits_refused_caller_gone"))
        pair.decode.runner.gate.set()
        await holder
        await pair.settled()


async def test_expected_answers_let_more_prompts_land_and_all_of_them_end() -> None:
    """Twelve blocks hold one whole request of ten; four of them outgrow what was expected."""
    kind = NodeKind(expected_output=4)
    async with worker_pair(num_blocks=12, decode_kind=kind) as pair:
        pair.decode.runner.step_seconds = 0.005
        most = 0

        def look(_: object) -> None:
            nonlocal most
            most = max(most, pair.decode.engine.scheduler.num_admitted)

        prompts = [[at, *range(7)] for at in range(4)]
        answers = await asyncio.gather(*(pair.ask(p, 32, on_token=look) for p in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.tokens == expected_tokens(prompt, 32)
        assert most > 1 and pair.decode.engine.counters.pauses > 0
        assert pair.decode.service.status_now().gauges["expected_output_tokens"] == 4
        await pair.settled()


async def test_a_decode_worker_that_is_full_costs_no_attempt() -> None:
    """It has as many requests as it takes, whether or not there are blocks for more."""
    async with worker_pair(max_attempts=1) as pair:
        pair.decode.service.attempts._limit = 1
        prompts = [[number] * 9 for number in range(4)]
        answers = await asyncio.gather(*(pair.ask(prompt, 6) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.tokens == expected_tokens(prompt, 6)
        counters = pair.journeys.counters
        assert set(counters.failures) == {"busy"} and set(counters.rungs) == {"disaggregated"}
        assert pair.decode.service.status_now().counters["credits_refused_busy"] > 0
        await pair.settled()
