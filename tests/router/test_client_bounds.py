"""What a client may ask for at the cost of others is bounded by the operator, and said so."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.router.conftest import CARD, EOS, Gateway, saying

from segue.cluster.config.client_bounds import ClientBounds
from segue.cluster.errors import InvalidRequest
from segue.cluster.request import GenerationRequest
from segue.router.api_types import CompletionBody, parse_body
from segue.router.request_plan import check_options, plan_requests

RETENTION = "kv_cache_retention_config"
RANGES = f"{RETENTION}.token_range_retention_configs"


def planned(bounds: ClientBounds, **fields: Any) -> GenerationRequest:
    card = dataclasses.replace(CARD, bounds=bounds)
    body = parse_body(CompletionBody, {"prompt": "x", **fields})
    check_options(body, card)  # what it lets through must not be refused later
    return plan_requests(body, [(5, 6, 7)], card).requests[0]


def refused_field(bounds: ClientBounds, **fields: Any) -> str | None:
    with pytest.raises(InvalidRequest) as refusal:
        planned(bounds, **fields)
    assert refusal.value.param is not None and refusal.value.param in refusal.value.message
    return refusal.value.param


def kept(**item: Any) -> dict[str, Any]:
    return {RETENTION: {"token_range_retention_configs": [{"token_start": 0, **item}]}}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("priority", [-(2**31), -1, 1, 2**31 - 1])
async def test_by_default_no_client_passes_another(gateway: Gateway, priority: int) -> None:
    gateway.play(saying(19556, EOS))
    response = await gateway.complete(priority=priority)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "priority" and "order of arrival" in error["message"]
    assert (await gateway.complete(priority=0)).status_code == 200
    assert [request.priority for request in gateway.generator.requests] == [0]


@given(
    st.integers(-(2**31), 0),
    st.integers(0, 2**31 - 1),
    st.none() | st.integers(-(2**31), 2**31 - 1),
)
def test_a_priority_passes_within_the_bounds_or_is_refused(
    least: int, most: int, asked: int | None
) -> None:
    bounds = ClientBounds(scheduling_policy="priority", min_priority=least, max_priority=most)
    if least <= (asked or 0) <= most:
        assert planned(bounds, priority=asked).priority == (asked or 0)
    else:
        assert refused_field(bounds, priority=asked) == "priority"


def test_retention_is_bounded_in_rank_and_in_time() -> None:
    bounds = ClientBounds(max_retention_priority=60, max_retention_s=2.0)
    assert refused_field(bounds, **kept(priority=61)) == f"{RANGES}.0.priority"
    long = kept(priority=60, duration_ms=2001)
    assert refused_field(bounds, **long) == f"{RANGES}.0.duration_ms"
    rank = {RETENTION: {"decode_retention_priority": 61}}
    assert refused_field(bounds, **rank) == f"{RETENTION}.decode_retention_priority"
    time = {RETENTION: {"decode_retention_priority": 36, "decode_duration_ms": 2001}}
    assert refused_field(bounds, **time) == f"{RETENTION}.decode_duration_ms"
    retention = planned(bounds, **kept(priority=60, duration_ms=2000)).retention
    assert retention.ranges[0].duration == 2.0


def test_no_rank_above_the_default_lasts_for_ever() -> None:
    for bounds in (ClientBounds(), ClientBounds(max_retention_s=2.0)):
        retention = planned(bounds, **kept(priority=36)).retention
        assert retention.ranges[0].duration == bounds.max_retention_s
        retention = planned(bounds, **{RETENTION: {"decode_retention_priority": 90}}).retention
        assert retention.decode_duration == bounds.max_retention_s


def test_an_operator_may_lift_the_bound_on_time() -> None:
    unbounded = ClientBounds(max_retention_s=None)
    assert planned(unbounded, **kept(priority=100)).retention.ranges[0].duration is None
    long = planned(unbounded, **kept(priority=100, duration_ms=10**12))
    assert long.retention.ranges[0].duration == 10**9


@pytest.mark.parametrize("duration_ms", [None, 10**12])
def test_giving_kv_up_early_is_anybodys_right(duration_ms: int | None) -> None:
    strict = ClientBounds(max_retention_priority=35, max_retention_s=0.001)
    retention = planned(strict, **kept(priority=0, duration_ms=duration_ms)).retention
    assert retention.ranges[0].priority == 0
    assert planned(strict).retention.ranges == ()


@pytest.mark.parametrize("wrong", [{"min_priority": 1}, {"max_priority": -1}])
def test_bounds_that_shut_everybody_out_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="must have 0 between them"):
        ClientBounds.model_validate(wrong)
