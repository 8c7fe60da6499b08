"""From a body to worker requests: defaults, limits and seeds."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.router.conftest import CARD, EOS

from segue.cluster.errors import InvalidRequest
from segue.router.api_types import ChatBody, CompletionBody, parse_body
from segue.router.generation import ModelCard
from segue.router.request_plan import RequestPlan, check_options, plan_requests, sample_seed

PROMPT = (5, 6, 7)
SMALL = dataclasses.replace(
    CARD,
    max_model_len=10,
    default_temperature=0.6,
    default_top_p=0.9,
    default_top_k=20,
    default_min_p=0.05,
)


def plan(prompts: list[tuple[int, ...]] | None = None, **fields: Any) -> RequestPlan:
    body = parse_body(CompletionBody, {"prompt": "x", **fields})
    check_options(body, SMALL)
    return plan_requests(body, prompts or [PROMPT], SMALL)


def chat_plan(card: ModelCard = SMALL, **fields: Any) -> RequestPlan:
    body = parse_body(ChatBody, {"messages": [{"role": "user", "content": "x"}], **fields})
    check_options(body, card)
    return plan_requests(body, [PROMPT], card)


def test_defaults_are_the_models() -> None:
    sampling = plan().requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.9, 20)
    sampling = plan(temperature=0, top_p=1, top_k=0).requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 1.0, 0)
    assert plan(temperature=1e-9).requests[0].sampling.temperature == 0.0
    assert plan().requests[0].sampling.min_p == 0.05
    assert plan(min_p=0).requests[0].sampling.min_p == 0.0


def test_max_tokens() -> None:
    assert plan().requests[0].stop.max_tokens == 7  # 16, clipped to what is left
    assert chat_plan().requests[0].stop.max_tokens == 7
    bounded = dataclasses.replace(SMALL, default_max_tokens=4)
    assert chat_plan(bounded).requests[0].stop.max_tokens == 4
    assert chat_plan(bounded, max_tokens=6).requests[0].stop.max_tokens == 6
    assert chat_plan(max_tokens=3).requests[0].stop.max_tokens == 3
    assert chat_plan(max_tokens=3, max_completion_tokens=4).requests[0].stop.max_tokens == 4
    assert plan(max_tokens=7).requests[0].max_total_tokens == SMALL.max_model_len
    with pytest.raises(InvalidRequest, match=r"3 tokens and 8 were asked for, 11 .* is 10"):
        plan(max_tokens=8)
    with pytest.raises(InvalidRequest, match="has 10 tokens"):
        plan([(5,) * 10])
    assert plan([(5,) * 9]).requests[0].stop.max_tokens == 1
    with pytest.raises(InvalidRequest, match=r"min_tokens \(9\)"):
        plan(min_tokens=9)
    with pytest.raises(InvalidRequest, match="no tokens"):
        plan([()])


def test_stop_rule() -> None:
    assert plan().requests[0].stop.stop_token_ids == {EOS}
    assert plan(stop_token_ids=[9]).requests[0].stop.stop_token_ids == {EOS, 9}
    assert plan(stop_token_ids=[9], ignore_eos=True).requests[0].stop.stop_token_ids == {9}
    assert plan(ignore_eos=True).text.eos_token_ids == frozenset()
    assert plan(stop=["a", "b", "a"]).text.stop == ("a", "b")


def test_seeds() -> None:
    def seeds(**fields: Any) -> list[int]:
        return [request.sampling.seed for request in plan(**fields).requests]

    assert seeds(n=3, seed=42)[0] == seeds(seed=42)[0] == 42
    assert seeds(n=3, seed=42) == seeds(n=3, seed=42)
    assert len(set(seeds(n=3, seed=42))) == 3
    assert seeds() != seeds()
    fresh = seeds(prompts=[PROMPT, PROMPT])
    assert fresh[0] != fresh[1]  # equal prompts in one request must not answer alike
    assert all(0 <= seed < 2**63 for seed in fresh)


@given(seed=st.integers(0, 2**64 - 1), sample=st.integers(0, 127))
def test_sample_seeds_fit_and_differ(seed: int, sample: int) -> None:
    derived = sample_seed(seed, sample)
    assert 0 <= derived < 2**64
    assert sample == 0 or derived != sample_seed(seed, sample - 1)


@given(num_prompts=st.integers(1, 6), n=st.integers(1, 6))
def test_ids_are_unique_and_choices_prompt_major(num_prompts: int, n: int) -> None:
    prompts: list[tuple[int, ...]] = [(10 + i,) for i in range(num_prompts)]
    made = plan(prompts, n=n, request_id="client-name")
    assert [r.prompt_token_ids for r in made.requests] == [p for p in prompts for _ in range(n)]
    assert made.prompts == prompts and made.num_prompt_tokens == num_prompts
    ids = {request.request_id for request in made.requests}
    assert len(ids) == num_prompts * n
    assert not any("client" in name for name in ids)
