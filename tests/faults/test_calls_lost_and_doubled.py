"""Calls between the processes that arrive twice, late, or whose answer is lost on the way."""

from typing import Any, cast

import pytest
from engine_parts import expected_tokens
from fault_plan import FaultPlan
from faulty_calls import FaultyCalls
from local_fleet import Answer
from worker_pair import NodeKind, Pair, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.worker_api import WorkerApi
from segue.workers.service import WorkerService

PROMPT = range(30)
NUM_TOKENS = 7
TO_PREFILL = ("submit", "release", "describe")
TO_DECODE = ("reserve", "announce")
CALLS = [*(("prefill", name) for name in TO_PREFILL), *(("decode", name) for name in TO_DECODE)]


def struck(role: str, plan: FaultPlan) -> dict[str, Any]:
    """The worker of `role` has its calls struck by `plan`."""

    def calls(service: WorkerService) -> WorkerApi:
        return cast(WorkerApi, FaultyCalls(service, lambda: plan))

    return {f"{role}_kind": NodeKind(calls=calls)}


async def ask_and_settle(pair: Pair) -> None:
    answer = await pair.ask(PROMPT, NUM_TOKENS)
    assert answer.tokens == expected_tokens(PROMPT, NUM_TOKENS)
    await pair.settled()


@pytest.mark.parametrize(("role", "call"), CALLS)
async def test_a_call_that_arrives_twice_changes_nothing(role: str, call: str) -> None:
    async with worker_pair(**struck(role, FaultPlan(twice=(call,)))) as pair:
        await ask_and_settle(pair)
        assert not pair.journeys.counters.failures


@pytest.mark.parametrize(("role", "call"), [c for c in CALLS if c[1] != "describe"])
async def test_an_answer_that_is_lost_is_recovered_from(role: str, call: str) -> None:
    """The work was done: what was taken on, lent or promised for it must come back."""
    transfer = TransferConfig(transport="loopback", lease_s=1.0, read_timeout_s=1.0)
    plan = FaultPlan(unanswered=(call,))
    async with worker_pair(transfer, max_attempts=4, **struck(role, plan)) as pair:
        await ask_and_settle(pair)
        assert pair.journeys.counters.failures


async def test_a_client_that_leaves_while_its_abort_arrives_twice() -> None:
    plan = FaultPlan(twice=("abort", "cancel"))
    async with worker_pair(**struck("prefill", plan), **struck("decode", plan)) as pair:
        for _ in range(3):
            with pytest.raises(_Left):
                await pair.ask(PROMPT, 60, on_token=_leave)
        await pair.settled()


class _Left(Exception):
    """The client has gone."""


def _leave(answer: Answer) -> None:
    if len(answer.tokens) >= 3:
        raise _Left
