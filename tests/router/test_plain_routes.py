"""Health, models, version, status, tokenize and the metrics page."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.router.conftest import EOS, Gateway, Step, saying

import segue
from segue.cluster.errors import Unavailable
from segue.cluster.request import FinishReason
from segue.router.generation import Readiness

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_health(gateway: Gateway) -> None:
    for path in ("/live", "/ready", "/health", "/ping"):
        assert (await gateway.client.get(path)).status_code == 200
        assert (await gateway.client.head(path)).status_code == 200
    gateway.ready = Readiness(False, "no decode worker", {"decode": "0 of 2"})
    assert (await gateway.client.get("/live")).status_code == 200
    for path in ("/ready", "/health", "/ping"):
        response = await gateway.client.get(path)
        assert response.status_code == 503
        assert response.json()["status"] == "not ready"
        assert response.json()["reason"] == "no decode worker"


async def test_not_ready_still_asks_the_generator(gateway: Gateway) -> None:
    gateway.ready = Readiness(False, "draining")
    gateway.play(lambda request: [Step(error=Unavailable("draining"))])
    response = await gateway.complete()
    assert response.status_code == 503 and response.headers["retry-after"] == "2"
    assert (await gateway.client.get("/v1/models")).status_code == 200


async def test_models_and_version(gateway: Gateway) -> None:
    (model,) = (await gateway.client.get("/v1/models")).json()["data"]
    assert model["max_model_len"] == 2048 and model["object"] == "model"
    response = await gateway.client.get("/version")
    assert response.json() == {"version": segue.__version__}
    status = (await gateway.client.get("/debug/status")).json()
    assert status["workers"] == ["p0", "d0"]
    assert 0 <= status["gateway"]["event_loop_lag_seconds"] < 60


async def test_openapi_describes_the_bodies(gateway: Gateway) -> None:
    response = await gateway.client.get("/openapi.json")
    assert "#/$defs" not in response.text
    post = response.json()["paths"]["/v1/chat/completions"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    assert {"messages", "max_completion_tokens", "stop", "seed"} <= schema["properties"].keys()


async def test_tokenize_and_back(gateway: Gateway) -> None:
    body = {"prompt": "Größe 東京 👍🏽", "return_token_strs": True}
    answer = (await gateway.client.post("/tokenize", json=body)).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 2048
    back = await gateway.client.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": body["prompt"]}
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
    tokens = (await gateway.client.post("/tokenize", json=chat)).json()["tokens"]
    assert tokens[0] == 1 and tokens[1] != 1  # one beginning-of-sequence, not two
    await gateway.client.post("/v1/chat/completions", json=chat)
    assert gateway.generator.requests[-1].prompt_token_ids == tuple(tokens)
    for bad in ({}, {**body, **chat}, {"prompt": 5}, {"prompt": "x", "model": 1}):
        assert (await gateway.client.post("/tokenize", json=bad)).status_code == 400
    for bad_tokens in ([-1], [49152], ["1"], "1", None):
        response = await gateway.client.post("/detokenize", json={"tokens": bad_tokens})
        assert response.status_code == 400
    response = await gateway.client.post("/tokenize", json={"prompt": "x", "model": "other"})
    assert response.status_code == 404


async def test_metrics_page(gateway: Gateway) -> None:
    before = {name: await gateway.metric(name) for name in COUNTED}
    gateway.play(saying(19556, 17, EOS, delay=0.002, cached=1))
    await gateway.complete(prompt=[5, 6, 7])
    await gateway.complete(prompt=[5, 6, 7], n=2, temperature=1, stream=True)
    await gateway.complete(temperature=9)
    gateway.play(lambda request: [Step((19556,)), Step(delay=0.01, error=Unavailable("lost"))])
    await gateway.complete(prompt=[5, 6], stream=True)
    await gateway.client.get("/wp-admin.php")
    grown = {name: await gateway.metric(name) - before[name] for name in COUNTED}
    assert grown == {
        COMPLETIONS + 'error_type="",status="200"}': 2,
        COMPLETIONS + 'error_type="validation",status="400"}': 1,
        COMPLETIONS + 'error_type="unavailable",status="503"}': 1,
        'segue_requests_total{endpoint="other",error_type="not_found",status="404"}': 1,
        "segue_prompt_tokens_total": 3 + 3 + 2,
        "segue_cached_prompt_tokens_total": 2,
        "segue_generation_tokens_total": 9 + 1,
        "segue_time_to_first_token_seconds_count": 3,
        "segue_inter_token_latency_seconds_count": 3 * 2,
        "segue_request_decode_time_seconds_count": 3,
        "segue_e2e_request_latency_seconds_count": 2,
    }
    response = await gateway.client.get("/metrics")
    families = {family.name for family in text_string_to_metric_families(response.text)}
    assert {"segue_requests", "segue_inflight_requests", "segue_fleet_workers"} | {
        "segue_gateway_event_loop_lag_seconds"
    } <= families
    assert (await gateway.client.head("/metrics")).status_code == 200


COMPLETIONS = 'segue_requests_total{endpoint="/v1/completions",'
COUNTED = (
    COMPLETIONS + 'error_type="",status="200"}',
    COMPLETIONS + 'error_type="validation",status="400"}',
    COMPLETIONS + 'error_type="unavailable",status="503"}',
    'segue_requests_total{endpoint="other",error_type="not_found",status="404"}',
    "segue_prompt_tokens_total",
    "segue_cached_prompt_tokens_total",
    "segue_generation_tokens_total",
    "segue_time_to_first_token_seconds_count",
    "segue_inter_token_latency_seconds_count",
    "segue_request_decode_time_seconds_count",
    "segue_e2e_request_latency_seconds_count",
)


async def test_a_fault_in_the_fleets_metrics_leaves_the_rest(gateway: Gateway) -> None:
    gateway.fleet_metrics = RuntimeError("a worker is gone")
    response = await gateway.client.get("/metrics")
    assert response.status_code == 200 and "segue_inflight_requests" in response.text
    gateway.play(saying(EOS, finish=FinishReason.LENGTH))
    assert (await gateway.complete()).status_code == 200
