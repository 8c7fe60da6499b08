"""Routes that answer from what is known already: models, health, version, metrics, status."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

import segue
from segue.cluster.errors import DeadlineExceeded, InvalidRequest
from segue.router.draining import STOPPING
from segue.router.generation import Readiness
from segue.router.request_plan import check_model
from segue.router.service import Service

log = logging.getLogger(__name__)

GATHER_SECONDS = 5.0  # for what other processes add to /metrics and /debug/status
MAX_TRACED_STEPS = 4096
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Awaitable[Response]])


def model_routes(service: Service) -> APIRouter:
    router = APIRouter()
    card = service.card
    model = {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "segue",
        "root": card.root,
        "parent": None,
        "max_model_len": card.max_model_len,
    }

    @_readable(router, "/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": [model]})

    @_readable(router, "/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        check_model(name, card)
        return _json(model)

    return router


def health_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @_readable(router, "/live")
    async def live() -> Response:
        return _json({"status": "live"})

    @_readable(router, "/ready")
    @_readable(router, "/health")
    @_readable(router, "/ping")
    async def ready() -> Response:
        state = service.readiness()
        if service.draining.has_begun:
            state = Readiness(False, STOPPING, state.details)
        status = "ready" if state.ready else "not ready"
        body = {"status": status, "reason": state.reason, "details": state.details}
        return _json(body, 200 if state.ready else 503)

    @_readable(router, "/version")
    async def version() -> Response:
        return _json({"version": segue.__version__})

    return router


def operation_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @_readable(router, "/metrics")
    async def metrics() -> Response:
        text = service.metrics.render()
        try:
            async with asyncio.timeout(GATHER_SECONDS):
                text += await service.metrics_text()
        except Exception:  # half of the metrics is better than none
            log.exception("the fleet's metrics could not be gathered")
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.get("/debug/status", response_model=None)
    async def status() -> Response:
        try:
            async with asyncio.timeout(GATHER_SECONDS):
                body = await service.status()
        except TimeoutError:
            raise DeadlineExceeded("the status could not be gathered in time") from None
        return _json({**body, "gateway": {"event_loop_lag_seconds": service.lag.seconds}})

    if (trace := service.trace) is not None:

        @router.get("/debug/trace", response_model=None)
        async def steps(worker: str, last: int = 40) -> Response:
            if not 1 <= last <= MAX_TRACED_STEPS:
                raise InvalidRequest(
                    f"last must be in [1, {MAX_TRACED_STEPS}], got {last}", param="last"
                )
            records = await trace(worker, last)
            return _json({"worker": worker, "steps": [asdict(record) for record in records]})

    return router


def _readable(router: APIRouter, path: str) -> Callable[[_Endpoint], _Endpoint]:
    """GET and HEAD; two routes, since FastAPI describes a route under one operation name."""

    def register(endpoint: _Endpoint) -> _Endpoint:
        router.add_api_route(path, endpoint, methods=["GET"], response_model=None)
        router.add_api_route(
            path, endpoint, methods=["HEAD"], response_model=None, include_in_schema=False
        )
        return endpoint

    return register


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
