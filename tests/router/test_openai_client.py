"""The main paths through the real `openai` client: what SDK users see."""

from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from tests.router.conftest import EOS, Gateway, Step, saying

from segue.cluster.errors import AttemptFailed, FailureKind, Unavailable
from segue.cluster.request import FinishReason

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = (19556, 17, EOS)  # "Hello!" and the end


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=gateway.url + "/v1", api_key="none", max_retries=0, timeout=10
    ) as client:
        yield client


async def test_chat(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    gateway.play(saying(*HELLO, cached=16))
    answer = await client.chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "Hi"}]
    )
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 16
    (request,) = gateway.generator.requests
    assert answer.usage.prompt_tokens == request.num_prompt_tokens
    assert answer.usage.completion_tokens == 3
    assert request.stop.max_tokens == 2048 - request.num_prompt_tokens
    assert request.stop.stop_token_ids == {EOS}
    assert gateway.generator.ended[request.request_id] == "exhausted"


async def test_chat_stream(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    gateway.play(saying(*HELLO, delay=0.01))
    stream = await client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == "Hello!"
    finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert finishes == [None] * (len(finishes) - 1) + ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_completion(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    gateway.play(saying(*HELLO[:2], finish=FinishReason.LENGTH))
    answer = await client.completions.create(model="smollm2", prompt="Say", max_tokens=2)
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello!", "length")
    gateway.play(saying(*HELLO))
    stream = await client.completions.create(model="smollm2", prompt="Say", stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello!"
    assert gateway.generator.requests[-1].stop.max_tokens == 16


async def test_prompts_and_samples_are_prompt_major(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    """Choice i*n + j is sample j of prompt i, although later samples answer sooner here."""
    words = {i: 19556 + i for i in range(6)}

    def script(request: object) -> list[Step]:
        index = len(gateway.generator.requests) - 1
        return [Step((words[index], EOS), 0.02 * (6 - index), FinishReason.STOP)]

    gateway.play(script)
    answer = await client.completions.create(
        model="smollm2", prompt=[[5, 6], [7], [8, 9]], n=2, seed=11, temperature=0.7
    )
    asked = gateway.generator.requests
    assert [r.prompt_token_ids for r in asked] == [(5, 6), (5, 6), (7,), (7,), (8, 9), (8, 9)]
    seeds = [request.sampling.seed for request in asked]
    assert seeds[0] == 11 and seeds[1] != 11 and seeds == seeds[:2] * 3
    assert len({request.request_id for request in asked}) == 6
    assert [choice.index for choice in answer.choices] == list(range(6))
    texts = [choice.text for choice in answer.choices]
    expected = await gateway.client.post("/detokenize", json={"tokens": list(words.values())})
    assert "".join(texts) == expected.json()["prompt"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 12)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (Unavailable("no decode worker", retry_after_seconds=7), openai.InternalServerError),
        (AttemptFailed(FailureKind.COMPUTE, "secret /path"), openai.InternalServerError),
        (RuntimeError("secret /path"), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_failures_before_the_first_token_are_plain_statuses(
    gateway: Gateway, client: openai.AsyncOpenAI, error: Exception, raised: type, stream: bool
) -> None:
    gateway.play(lambda request: [Step(delay=0.01, error=error)])
    with pytest.raises(raised) as caught:
        await client.completions.create(model="smollm2", prompt="x", stream=stream)
    assert isinstance(caught.value, openai.APIStatusError)
    unavailable = isinstance(error, Unavailable)
    assert caught.value.status_code == (503 if unavailable else 500)
    assert caught.value.response.headers.get("retry-after") == ("7" if unavailable else None)
    assert "secret" not in str(caught.value)


async def test_a_failure_in_the_stream_raises_and_closes_the_others(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    def script(request: object) -> list[Step]:
        if len(gateway.generator.requests) == 1:
            return [Step((19556,)), Step(delay=0.05, error=Unavailable("worker lost"))]
        return [Step((17,), 0.01)] * 1000

    gateway.play(script)
    stream = await client.completions.create(
        model="smollm2", prompt="x", n=3, temperature=1.0, stream=True
    )
    seen: list[str] = []
    with pytest.raises(openai.APIError, match="worker lost"):
        async for chunk in stream:
            seen.append(chunk.choices[0].text)
    assert "Hello" in seen
    assert gateway.generator.num_running == 0
    assert sorted(gateway.generator.ended.values()) == ["aborted", "aborted", "failed"]


async def test_typed_errors(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="served: smollm2"):
        await client.completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model="smollm2", prompt="x", temperature=3)
    assert caught.value.param == "temperature"
    assert gateway.generator.requests == []


async def test_models(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    (model,) = (await client.models.list()).data
    assert (model.id, model.owned_by) == ("smollm2", "segue")
    assert (await client.models.retrieve("smollm2")).id == "smollm2"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("org/other")


async def test_request_ids(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    gateway.play(saying(*HELLO))
    answer = await client.completions.create(
        model="smollm2", prompt="x", extra_headers={"X-Request-Id": "mine-1"}
    )
    assert answer._request_id == "mine-1" and answer.id == "cmpl-mine-1"
    name = gateway.generator.requests[0].request_id
    assert name.startswith("mine-1.") and name != "mine-1"  # which another client may choose
    answer = await client.completions.create(
        model="smollm2", prompt="x", extra_body={"request_id": "body-2"}
    )
    assert answer._request_id == "body-2" and answer.id == "cmpl-body-2"
