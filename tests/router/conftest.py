"""A scripted generator and a real server around it, for the tests of the HTTP surface."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from segue.cluster.config.file import parse_config
from segue.cluster.config.gateway import GatewayConfig
from segue.cluster.request import FinishReason, GenerationRequest
from segue.cluster.step_trace import StepRecord
from segue.router.gateway import create_app
from segue.router.generation import ModelCard, Readiness, TokensEvent
from segue.router.half_close import AGAIN_SECONDS, FIRST_SECONDS
from segue.router.listener import open_listener
from segue.router.operations import Operations
from segue.router.server import GatewayServer
from segue.router.tokenizer import TextTokenizer, load_tokenizer

EOS = 2
CARD = ModelCard(
    id="smollm2",
    max_model_len=2048,
    vocab_size=49152,
    eos_token_ids=frozenset({EOS}),
    bos_token_id=1,
    created=1_700_000_000,
    root="smollm2-135m",
)


@dataclass(frozen=True, slots=True)
class Step:
    """What a scripted generator does next: wait, then fail or yield."""

    token_ids: tuple[int, ...] = ()
    delay: float = 0.0
    finish: FinishReason | None = None
    error: Exception | None = None
    cached_tokens: int = 0


Script = Callable[[GenerationRequest], Sequence[Step]]


@dataclass
class ScriptedGenerator:
    """Plays a script for each request, and remembers what was asked and how each one ended."""

    script: Script
    requests: list[GenerationRequest] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    num_running: int = 0
    num_yielded: int = 0

    def reset(self, script: Script) -> None:
        self.script = script
        self.requests.clear()
        self.ended.clear()
        self.num_yielded = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokensEvent, None]:
        self.requests.append(request)
        self.num_running += 1
        how = "aborted"
        try:
            for step in self.script(request):
                await asyncio.sleep(step.delay)
                if step.error is not None:
                    how = "failed"
                    raise step.error
                self.num_yielded += 1
                yield TokensEvent(step.token_ids, step.finish, step.cached_tokens)
            how = "exhausted"
        finally:
            self.num_running -= 1
            self.ended[request.request_id] = how


def saying(
    *token_ids: int, delay: float = 0.0, finish: FinishReason = FinishReason.STOP, cached: int = 0
) -> Script:
    """One event a token; the last one finishes."""
    last = len(token_ids) - 1
    steps = [
        Step((t,), delay, finish if i == last else None, cached_tokens=0 if i else cached)
        for i, t in enumerate(token_ids)
    ]
    return lambda request: steps


ENDED = saying(EOS)


def endless(token_id: int, delay: float = 0.005) -> Script:
    return lambda request: [Step((token_id,), delay)] * 100_000


@dataclass
class Gateway:
    url: str
    generator: ScriptedGenerator
    client: httpx.AsyncClient
    server: GatewayServer
    ready: Readiness = Readiness(True)
    fleet_metrics: bytes | Exception = b"segue_fleet_workers 2\n"

    def play(self, script: Script) -> None:
        self.generator.script = script

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "Hi", **fields})

    async def metric(self, name: str) -> float:
        """The value of one sample of /metrics; 0 if there is none."""
        text = (await self.client.get("/metrics")).text
        values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name)]
        return float(values[0]) if values else 0.0


# Until a client is missed that leaves before its answer has begun, with something to spare.
UNHEARD_SECONDS = FIRST_SECONDS + AGAIN_SECONDS + 3.0


async def eventually(condition: Callable[[], bool], seconds: float = 1.0) -> bool:
    """True as soon as `condition` holds, False if it does not within `seconds`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while not condition():
        if loop.time() > until:
            return False
        await asyncio.sleep(0.005)
    return True


def gateway_config(**sections: Any) -> GatewayConfig:
    sections.setdefault("text_processes", 1)  # each costs a test 0.3 s
    return parse_config({"gateway": sections}).gateway


@asynccontextmanager
async def serving(
    model_folder: Path,
    script: Script = ENDED,
    config: GatewayConfig | None = None,
    card: ModelCard = CARD,
    keep_alive_seconds: float = 15.0,
    operations: Operations | None = None,
    trace: Callable[[str, int], Awaitable[list[StepRecord]]] | None = None,
    drain_timeout_s: float = 5.0,
) -> AsyncIterator[Gateway]:
    """A gateway behind a real uvicorn server on a free port of the loopback interface."""
    generator = ScriptedGenerator(script)

    async def metrics_text() -> bytes:
        if isinstance(running.fleet_metrics, Exception):
            raise running.fleet_metrics
        return running.fleet_metrics

    async def status() -> dict[str, Any]:
        return {"workers": ["p0", "d0"]}

    app = create_app(
        generator=generator,
        card=card,
        model_folder=model_folder,
        config=config or gateway_config(),
        readiness=lambda: running.ready,
        metrics_text=metrics_text,
        status=status,
        operations=operations,
        trace=trace,
        keep_alive_seconds=keep_alive_seconds,
    )
    with open_listener("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = GatewayServer(app, drain_timeout_s)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
                running = Gateway(url, generator, client, server)
                while not server.started:
                    await asyncio.sleep(0.005)
                yield running
        finally:
            server.should_exit = True
            await task


@pytest.fixture(scope="session")
def text_tokenizer(bundled_model: Path) -> TextTokenizer:
    return load_tokenizer(bundled_model)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway(bundled_model: Path) -> AsyncIterator[Gateway]:
    async with serving(bundled_model) as running:
        yield running


@pytest.fixture
def gateway(shared_gateway: Gateway) -> Gateway:
    """One server for a whole file, fresh for each test; needs `loop_scope="module"`."""
    shared_gateway.generator.reset(ENDED)
    shared_gateway.ready = Readiness(True)
    shared_gateway.fleet_metrics = b"segue_fleet_workers 2\n"
    return shared_gateway
