"""Orders over HTTP: read strictly, carried out, and told with figures or with the reason."""

from collections.abc import AsyncIterator, Collection
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from tests.router.conftest import Gateway, endless, eventually, serving

from segue.cluster.errors import InvalidRequest, Unavailable
from segue.cluster.fleet import WorkerState, WorkerView
from segue.cluster.handoff import MigrationReport
from segue.cluster.identity import WorkerIdentity
from segue.router.migration import Migration
from segue.router.operations import Operations

SOURCE, TARGET = WorkerIdentity("decode-0", "aa"), WorkerIdentity("decode-1", "bb")


class Scripted(Operations):
    """Knows what the gateway writes, and one worker that could be drained."""

    def __init__(self) -> None:
        self.gateway: Gateway | None = None
        self.moved: list[tuple[str, str]] = []
        self.report: MigrationReport | None = MigrationReport(300, 19, 2**20, 2, 0.0123)

    @property
    def running(self) -> Collection[str]:
        assert self.gateway is not None
        return [request.request_id for request in self.gateway.generator.requests]

    async def migrate(self, request_id: str, worker_id: str) -> Migration:
        if worker_id == "full":
            raise Unavailable("the request goes on where it was: no room")
        self.moved.append((request_id, worker_id))
        return Migration(request_id, SOURCE, TARGET, self.report, 0.0456)

    async def drain(self, worker_id: str) -> WorkerView:
        if worker_id != "decode-0":
            raise InvalidRequest(f"no worker is called '{worker_id}'", param="worker")
        return WorkerView(SOURCE, "decode", "decode", WorkerState.READY)


@pytest_asyncio.fixture
async def scripted(bundled_model: Path) -> AsyncIterator[Scripted]:
    operations = Scripted()
    async with serving(bundled_model, operations=operations) as gateway:
        operations.gateway = gateway
        yield operations


async def order(scripted: Scripted, path: str, **body: object) -> httpx.Response:
    assert scripted.gateway is not None
    return await scripted.gateway.client.post(path, json=body)


async def test_a_move_is_told_with_figures(scripted: Scripted) -> None:
    """By the name that its client knows, for as long as it is written."""
    gateway = scripted.gateway
    assert gateway is not None
    gateway.play(endless(28))
    body = {"model": "smollm2", "prompt": "x", "stream": True, "max_tokens": 1000}
    header = {"X-Request-Id": "mine-1"}
    async with gateway.client.stream("POST", "/v1/completions", json=body, headers=header):
        assert await eventually(lambda: bool(gateway.generator.requests))
        name = gateway.generator.requests[0].request_id
        done = await order(scripted, "/admin/migrate", request="cmpl-mine-1", worker="decode-1")
        assert done.status_code == 200
        assert done.json() == {
            "request": name,
            "from": "decode-0",
            "to": "decode-1",
            "pause_ms": 45.6,
            "tokens": 300,
            "blocks": 19,
            "bytes": 2**20,
            "blocks_while_stopped": 2,
            "stopped_ms": 12.3,
        }
        assert scripted.moved == [(name, "decode-1")]
        scripted.report = None
        unreported = await order(scripted, "/admin/migrate", request=name, worker="decode-1")
        assert unreported.json()["blocks"] is None and unreported.json()["pause_ms"] == 45.6
        full = await order(scripted, "/admin/migrate", request="mine-1", worker="full")
        assert full.status_code == 503 and "no room" in full.json()["error"]["message"]
    assert await eventually(lambda: gateway.generator.num_running == 0)
    gateway.generator.requests.clear()
    gone = await order(scripted, "/admin/migrate", request="mine-1", worker="decode-1")
    assert gone.status_code == 400 and "no request 'mine-1'" in gone.json()["error"]["message"]


async def test_a_drain_names_the_life_that_leaves(scripted: Scripted) -> None:
    done = await order(scripted, "/admin/drain", worker="decode-0")
    assert (done.status_code, done.json()) == (200, {"worker": "decode-0", "incarnation": "aa"})
    unknown = await order(scripted, "/admin/drain", worker="x")
    assert unknown.status_code == 400 and unknown.json()["error"]["param"] == "worker"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/admin/drain", {}, "worker"),
        ("/admin/drain", {"worker": ""}, "worker"),
        ("/admin/drain", {"worker": 3}, "worker"),
        ("/admin/drain", {"worker": "decode-0", "now": True}, "now"),
        ("/admin/migrate", {"worker": "decode-0"}, "request"),
        ("/admin/migrate", {"request": "x" * 201, "worker": "decode-0"}, "request"),
    ],
)
async def test_bad_orders_name_the_field(
    scripted: Scripted, path: str, body: dict[str, object], field: str
) -> None:
    refused = await order(scripted, path, **body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == field


async def test_only_posts_change_anything(scripted: Scripted) -> None:
    assert scripted.gateway is not None
    client = scripted.gateway.client
    assert (await client.get("/admin/drain?worker=decode-0")).status_code == 405
    assert (await client.post("/admin/drain", content=b"worker=decode-0")).status_code == 400


async def test_without_operations_there_are_no_such_routes(bundled_model: Path) -> None:
    async with serving(bundled_model) as gateway:
        assert (await gateway.client.post("/admin/drain", json={})).status_code == 404
