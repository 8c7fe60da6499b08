"""Requests that cannot be moved: the order is refused with the reason, and they go on."""

import asyncio

import pytest
from attempt_events import attempt_events
from worker_trio import PROMPT, TEXT, Trio, trio

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import AttemptFailed, InvalidRequest
from segue.cluster.handoff import Assignment
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.kvtransfer.loopback_transport import Faults
from segue.router.migration import Migration


@pytest.mark.parametrize(
    ("request_id", "worker", "message"),
    [
        ("x", "decode-1", "no request 'x' is running at this gateway, which has 1"),
        ("r1", "decode-7", "no worker is called 'decode-7'; there are: decode-0, decode-1, pref"),
        ("r1", "prefill-0", "is a prefill worker"),
        ("r1", "decode-0", "is on decode-0 already"),
    ],
)
async def test_wrong_names(three: Trio, request_id: str, worker: str, message: str) -> None:
    answer, result = await three.ask(5, lambda: three.migrations.migrate(request_id, worker))
    assert isinstance(result, InvalidRequest) and message in result.message
    three.goes_on_where_it_was(answer)
    assert not three.outcomes
    await three.settled()


async def test_what_is_not_written_yet(three: Trio) -> None:
    three.pair.prefill.runner.gate.clear()
    asking = asyncio.create_task(three.pair.ask(PROMPT, 5, request_id="r1"))
    await three.pair.until(lambda: three.pair.journeys.running)
    with pytest.raises(InvalidRequest, match="is not being written yet"):
        await three.migrations.migrate("r1", "decode-1")
    three.pair.prefill.runner.gate.set()
    assert (await asking).tokens == TEXT[:5]
    await three.settled()


async def test_two_orders_for_one_request(three: Trio) -> None:
    three.pair.fabric.set_faults(Faults(delay_seconds=0.05))

    async def twice() -> list[object]:
        orders = (three.migrations.migrate("r1", "decode-1") for _ in range(2))
        return list(await asyncio.gather(*orders, return_exceptions=True))

    answer, results = await three.ask(5, twice)
    assert isinstance(results, list) and isinstance(results[0], Migration)
    assert isinstance(results[1], InvalidRequest) and "being moved already" in results[1].message
    assert answer.tokens == TEXT
    await three.settled()


async def test_a_target_that_drains(three: Trio) -> None:
    await three.target.service.drain("a test")
    answer, result = await three.move(5)
    assert isinstance(result, AttemptFailed) and "takes no new requests" in result.message
    three.goes_on_where_it_was(answer)
    assert three.outcomes == {"failed": 1}
    await three.settled()


async def test_a_target_of_another_kind(three: Trio) -> None:
    three.target.service.parts.peers.fingerprint["dtype"] = "int9"
    answer, result = await three.move(5)
    assert isinstance(result, AttemptFailed) and "dtype" in result.message
    three.goes_on_where_it_was(answer)
    await three.settled()


async def test_no_room_is_told_with_numbers() -> None:
    transfer = TransferConfig(transport="loopback", migration_wait_s=0.1)
    async with trio(transfer=transfer, num_blocks=20) as three:
        filling = filler(three)
        attempt_events(three.pair.links, filling.attempt_id, [three.target.identity])
        await three.target.service.submit(filling, None)
        await three.pair.until(lambda: three.target.engine.scheduler.generation)
        answer, result = await three.move(5)
        assert isinstance(result, AttemptFailed), result
        assert "no room within 0.1 s: it needs 18 KV blocks, 8 of 32 are" in result.message
        three.goes_on_where_it_was(answer)
        await three.pair.settled(three.source)


def filler(three: Trio) -> Assignment:
    request = GenerationRequest(
        "filler", tuple(range(50, 60)), SamplingParams(temperature=0.0), StopRule(85)
    )
    return Assignment(request, 1, (), three.pair.links.gateway_id, 20.0)
