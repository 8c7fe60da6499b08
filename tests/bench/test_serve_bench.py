"""The serving benchmark against a small server with known delays and faults, over real HTTP."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from segue.bench.measurement import Fault, Measurement
from segue.bench.serve_bench import Progress, ServePlan, ServeResult, run_serve_bench
from segue.bench.summary import Objective
from segue.cluster.errors import Unavailable
from segue.deploy.bench_command import bench_app


@dataclass(frozen=True, slots=True)
class Script:
    """How one request is answered; the default is a whole answer at once."""

    status: int = 200
    first_s: float = 0.0
    gap_s: float = 0.0
    tokens_a_chunk: int = 1
    missing_tokens: int = 0
    drop_after: int | None = None  # cut the connection after so many chunks
    end_after: int | None = None  # end the stream in good order, but early
    error_after: int | None = None
    garbage: bool = False
    usage: bool = True


@dataclass(slots=True)
class FakeServer:
    """Request i gets scripts[i]; those beyond are answered well."""

    scripts: list[Script] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0
    url: str = ""

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "fake-1"}, {"id": "fake-2"}]})

    async def answer(self, request: Request) -> Response:
        number = len(self.bodies)
        body = await request.json()
        self.bodies.append(body)
        self.authorizations.append(request.headers.get("authorization"))
        script = self.scripts[number] if number < len(self.scripts) else Script()
        if script.status != 200:
            return JSONResponse({"error": {"message": "as planned"}}, script.status)
        return StreamingResponse(self.stream(body, script), media_type="text/event-stream")

    async def stream(self, body: dict[str, Any], script: Script) -> AsyncIterator[str]:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            async for event in self.events(body, script):
                yield f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n"
        finally:
            self.num_running -= 1

    async def events(
        self, body: dict[str, Any], script: Script
    ) -> AsyncIterator[dict[str, Any] | str]:
        chat = "messages" in body
        if chat:
            yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        tokens = body["max_tokens"] - script.missing_tokens
        for number in range(0, tokens, script.tokens_a_chunk):
            if number == script.drop_after:
                raise ConnectionAbortedError("as planned")
            if number == script.end_after:
                return
            if number == script.error_after:
                yield {"error": {"message": "the worker died", "code": 500}}
                return
            if script.garbage:
                yield "{not json"
            await asyncio.sleep(script.gap_s if number else script.first_s)
            yield {"choices": [{"delta": {"content": "x"}} if chat else {"text": "x"}]}
        yield {"choices": [{"text": "", "delta": {}, "finish_reason": "length"}]}
        if script.usage:
            prompt = len(body["messages"][0]["content"].split()) if chat else len(body["prompt"])
            yield {
                "choices": [],
                "usage": {"prompt_tokens": prompt, "completion_tokens": tokens},
            }
        yield "[DONE]"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Serves on a free port of this machine, from a thread of its own."""
    server = FakeServer()
    routes = [
        Route("/v1/models", server.models),
        Route("/v1/completions", server.answer, methods=["POST"]),
        Route("/v1/chat/completions", server.answer, methods=["POST"]),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes), log_level="critical", ws="none", lifespan="off", loop="asyncio"
    )
    web = uvicorn.Server(config)
    # The protocol is named because asyncio turns Nagle's algorithm off only where it is.
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # from here on a client is queued, not refused
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            web.should_exit = True
            thread.join(timeout=10)


async def run(server: FakeServer, **changes: Any) -> ServeResult:
    values: dict[str, Any] = {
        "base_url": server.url,
        "concurrency": (1,),
        "prompt_tokens": 6,
        "output_tokens": 4,
        "requests_per_level": 3,
        "warmup": 0,
        "timeout_s": 10.0,
    }
    progress = Progress(begin=lambda name, total: None, end_request=lambda measurement: None)
    return await run_serve_bench(ServePlan(**values | changes), progress)


def only(result: ServeResult) -> Measurement:
    (measurement,) = result.levels[0].measurements
    return measurement


async def test_whole_answers_are_counted_exactly(server: FakeServer) -> None:
    server.scripts = [Script(first_s=0.05)] * 14  # long enough to overlap
    result = await run(server, concurrency=(1, 3), requests_per_level=6, warmup=2)
    assert result.num_failed == 0
    assert result.model == "fake-1"
    assert len(server.bodies) == 2 + 6 + 6
    assert server.most_running == 3
    for summary in result.summaries:
        assert (summary.served, summary.prompt_tokens, summary.output_tokens) == (6, 36, 24)
        assert summary.itl is not None and summary.itl.count == 6 * 3
        assert summary.tokens_per_chunk == 1
        assert summary.output_tokens_per_s == pytest.approx(24 / summary.wall_s)


async def test_requests_say_what_every_server_understands(server: FakeServer) -> None:
    await run(server, model="mine", api_key="secret", shared_prefix_tokens=2)
    assert server.authorizations == ["Bearer secret"] * 3
    prompts = [body.pop("prompt") for body in server.bodies]
    assert [len(prompt) for prompt in prompts] == [6, 6, 6]
    assert len({tuple(prompt[:2]) for prompt in prompts}) == 1
    assert len({prompt[2] for prompt in prompts}) == 3
    assert server.bodies[0] == {
        "model": "mine",
        "max_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_chat_is_measured_alike(server: FakeServer) -> None:
    result = await run(server, endpoint="chat")
    assert result.num_failed == 0
    assert result.summaries[0].prompt_tokens == 3 * 6
    assert all(len(m.chunks_s) == 4 for m in result.levels[0].measurements)


async def test_delays_are_found_where_they_are(server: FakeServer) -> None:
    server.scripts = [Script(first_s=0.2, gap_s=0.03), Script(gap_s=0.03), Script()]
    objective = Objective(ttft_s=0.15, itl_s=0.02)
    result = await run(server, objective=objective)
    slow_start, slow_tokens, fast = result.levels[0].measurements
    assert slow_start.ttft_s is not None and 0.2 <= slow_start.ttft_s < 0.4
    assert slow_tokens.ttft_s is not None and slow_tokens.ttft_s < 0.15
    for slow in (slow_start, slow_tokens):
        assert all(0.02 <= gap < 0.2 for gap in slow.gaps_s)
        assert slow.tpot_s is not None and 0.03 <= slow.tpot_s < 0.2
        assert slow.ended_s >= 0.09
    assert fast.ended_s < 0.09
    assert result.summaries[0].good_requests == 1
    assert result.levels[0].wall_s >= slow_start.ended_s + slow_tokens.ended_s + fast.ended_s


async def test_several_tokens_in_a_chunk_are_told_apart(server: FakeServer) -> None:
    server.scripts = [Script(tokens_a_chunk=2, gap_s=0.06)]
    result = await run(server, requests_per_level=1)
    assert result.summaries[0].tokens_per_chunk == 2
    request = only(result)
    assert len(request.gaps_s) == 1 and request.gaps_s[0] >= 0.05
    assert request.tpot_s is not None and 0.02 <= request.tpot_s < 0.05


@pytest.mark.parametrize(
    ("script", "fault", "detail"),
    [
        (Script(status=500), Fault.HTTP, "as planned"),
        (Script(status=429), Fault.HTTP, "as planned"),
        (Script(drop_after=2), Fault.TRUNCATED, "RemoteProtocolError"),
        (Script(end_after=2), Fault.TRUNCATED, "no finish reason after 2 chunks"),
        (Script(error_after=1), Fault.STREAM_ERROR, "the worker died"),
        (Script(missing_tokens=1), Fault.WRONG_LENGTH, "3 tokens instead of 4"),
        (Script(garbage=True), Fault.MALFORMED, "JSONDecodeError"),
        (Script(usage=False), Fault.NO_USAGE, "no usage"),
        (Script(first_s=5.0), Fault.TIMEOUT, "not finished after 0.3 s"),
    ],
)
async def test_a_fault_is_named_and_spoils_nothing_else(
    server: FakeServer, script: Script, fault: Fault, detail: str
) -> None:
    server.scripts = [Script(), script]
    result = await run(server, timeout_s=0.3 if fault is Fault.TIMEOUT else 10.0)
    _, bad, _ = result.levels[0].measurements
    assert bad.failure is not None
    assert bad.failure.fault is fault
    assert detail in bad.failure.detail
    assert bad.failure.status == (script.status if fault is Fault.HTTP else None)
    summary = result.summaries[0]
    assert (summary.served, summary.failures) == (2, {bad.failure.label: 1})
    assert (summary.output_tokens, result.num_failed) == (8, 1)


async def test_nobody_there() -> None:
    nobody = FakeServer(url="http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="no answer from the server: ConnectError"):
        await run(nobody)
    result = await run(nobody, model="known", requests_per_level=1)
    failure = only(result).failure
    assert failure is not None and failure.fault is Fault.CONNECTION


def command(server: FakeServer, *options: str) -> list[str]:
    return [
        *("serve", "--base-url", server.url, "--concurrency", "1,2", "--prompt-tokens", "6"),
        *("--output-tokens", "4", "--requests-per-level", "2", *options),
    ]


def test_the_command_prints_a_row_a_level_and_writes_all(
    server: FakeServer, tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    options = ("--api-key", "secret", "--slo-ttft-ms", "9000", "--seed", "7", "--json", str(file))
    outcome = CliRunner().invoke(bench_app, command(server, *options))
    assert outcome.exit_code == 0, outcome.output
    rows = [line.split() for line in outcome.stdout.splitlines() if "2/2" in line]
    assert [row[0] for row in rows] == ["1", "2"]
    assert "goodput" in outcome.stdout
    figures = json.loads(file.read_text())
    assert (figures["schema"], figures["schema_version"]) == ("segue.bench.serve", 1)
    assert figures["arguments"]["seed"] == 7
    assert [level["concurrency"] for level in figures["summaries"]] == [1, 2]
    assert figures["summaries"][0]["good_requests"] == 2
    assert len(figures["levels"][1]["measurements"][0]["chunks_s"]) == 4
    assert len(figures["warmup"]["measurements"]) == 2
    assert "secret" not in file.read_text()
    assert socket.gethostname() not in file.read_text()


def test_the_command_fails_when_a_request_does(server: FakeServer) -> None:
    server.scripts = [Script(), Script(), Script(status=503), Script(drop_after=1)]
    outcome = CliRunner().invoke(bench_app, command(server))
    assert outcome.exit_code == 1
    assert "concurrency 1: 1 x http 503, first: " in outcome.stderr
    assert "concurrency 1: 1 x truncated, first: " in outcome.stderr
    assert "0/2" in outcome.stdout


def test_two_runs_do_not_send_the_same_prompts(server: FakeServer) -> None:
    for _ in range(2):
        assert CliRunner().invoke(bench_app, command(server)).exit_code == 0
    prompts = {tuple(body["prompt"]) for body in server.bodies}
    assert len(prompts) == len(server.bodies) == 12
