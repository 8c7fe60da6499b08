"""Routes that change something: POST /admin/migrate and /admin/drain."""

from typing import Any

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from segue.router.api_types import parse_body
from segue.router.migration import Migration
from segue.router.operations import Operations
from segue.router.request_body import read_json
from segue.router.service import Service

MAX_BODY_BYTES = 4096


class DrainBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    worker: str = Field(min_length=1, max_length=200)


class MigrateBody(DrainBody):
    request: str = Field(min_length=1, max_length=200)


def admin_routes(service: Service, operations: Operations) -> APIRouter:
    router = APIRouter()

    @router.post("/admin/migrate", response_model=None)
    async def migrate(request: Request) -> Response:
        body = parse_body(MigrateBody, await read_json(request, MAX_BODY_BYTES))
        name = service.names.find(body.request, operations.running)
        return _json(_migration(await operations.migrate(name, body.worker)))

    @router.post("/admin/drain", response_model=None)
    async def drain(request: Request) -> Response:
        body = parse_body(DrainBody, await read_json(request, MAX_BODY_BYTES))
        worker = await operations.drain(body.worker)
        return _json({"worker": body.worker, "incarnation": worker.identity.incarnation})

    return router


def _migration(done: Migration) -> dict[str, Any]:
    report = done.report
    return {
        "request": done.request_id,
        "from": done.source.worker_id,
        "to": done.target.worker_id,
        "pause_ms": None if done.pause_s is None else round(done.pause_s * 1e3, 3),
        "tokens": report and report.num_tokens,
        "blocks": report and report.num_blocks,
        "bytes": report and report.num_bytes,
        "blocks_while_stopped": report and report.num_blocks_stopped,
        "stopped_ms": report and round(report.stopped_seconds * 1e3, 3),
    }


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
