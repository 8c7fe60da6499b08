"""Composes the HTTP application: routes, the layers around them, and how errors are told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

import segue
from segue.cluster.config.gateway import GatewayConfig
from segue.cluster.loop_lag import LoopLag
from segue.cluster.loopback import is_loopback
from segue.cluster.step_trace import StepRecord
from segue.router.access import ADMIN_PATHS, AccessLayer
from segue.router.admin_routes import admin_routes
from segue.router.admission import ADMITTED_PATHS, Admission, AdmissionLayer
from segue.router.api_keys import load_keys
from segue.router.draining import Draining
from segue.router.error_body import install_error_responses
from segue.router.exchange_layer import WIND_UP_SECONDS, ExchangeLayer
from segue.router.generation import Generator, ModelCard, Readiness
from segue.router.generation_routes import generation_routes
from segue.router.http_metrics import HttpMetrics
from segue.router.operations import Operations
from segue.router.plain_routes import health_routes, model_routes, operation_routes
from segue.router.service import Service
from segue.router.text_model import TextSource, load_text_model
from segue.router.text_processes import TextProcesses
from segue.router.tokenize_routes import tokenize_routes
from segue.router.traffic_log import TrafficLog

KEEP_ALIVE_SECONDS = 15.0
_PLAIN_PATHS = frozenset(
    {
        "/v1/models",
        "/live",
        "/ready",
        "/health",
        "/ping",
        "/version",
        "/metrics",
        "/debug/status",
        "/debug/trace",
    }
)


def create_app(
    *,
    generator: Generator,
    card: ModelCard,
    model_folder: Path,
    config: GatewayConfig,
    readiness: Callable[[], Readiness],
    metrics_text: Callable[[], Awaitable[bytes]],
    status: Callable[[], Awaitable[dict[str, Any]]],
    trace: Callable[[str, int], Awaitable[list[StepRecord]]] | None = None,
    operations: Operations | None = None,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
) -> FastAPI:
    """`trace` gives the last steps of a worker by its id; without it the route is not there, nor
    are those that change something without `operations`.

    Raises ConfigurationError if the model folder or a key file can not be used."""
    source = TextSource(model_folder, card)
    draining = Draining()
    admission = Admission(config.admission, draining)
    service = Service(
        generator=generator,
        card=card,
        config=config,
        tokens=load_text_model(source).tokenizer.tokens,
        texts=TextProcesses(source, config.text_processes),
        metrics=HttpMetrics(lambda: admission.num_admitted, model_name=card.id),
        readiness=readiness,
        metrics_text=metrics_text,
        status=status,
        trace=trace,
        keep_alive_seconds=keep_alive_seconds,
        lag=LoopLag(),
        draining=draining,
        traffic=TrafficLog(config.access_log),
    )
    _show_lag(service)

    app = FastAPI(
        title="Segue",
        version=segue.__version__,
        redirect_slashes=False,
        lifespan=_lifespan(service),
    )
    app.state.draining = draining
    for routes in (
        *(generation_routes, tokenize_routes, model_routes, health_routes, operation_routes),
    ):
        app.include_router(routes(service))
    if operations is not None:
        app.include_router(admin_routes(service, operations))
    install_error_responses(app, config.admission.overload_status)
    _add_layers(app, service, admission)
    return app


def _lifespan(service: Service) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.lag.start()
        await service.texts.start()
        rates = asyncio.create_task(service.traffic.tell_rates(), name="traffic log")
        yield
        rates.cancel()
        await service.texts.close()
        service.lag.stop()

    return lifespan


def _show_lag(service: Service) -> None:
    service.metrics.gauge(
        "segue_gateway_event_loop_lag_seconds",
        "Greatest lag of the gateway's event loop in the last 15 s",
        lambda: service.lag.seconds,
    )


def _add_layers(app: FastAPI, service: Service, admission: Admission) -> None:
    """The last one added is the outermost: exchange, then access, then admission, then routes."""
    limits = service.config.admission
    app.add_middleware(AdmissionLayer, admission=admission, overload_status=limits.overload_status)
    keys, trusted = load_keys(service.config), is_loopback(service.config.host)
    app.add_middleware(AccessLayer, keys=keys, trusted=trusted)
    app.add_middleware(
        ExchangeLayer,
        metrics=service.metrics,
        endpoint_of=endpoint_of,
        limit_seconds=limits.request_timeout_s + WIND_UP_SECONDS,
        traffic=service.traffic,
    )


def endpoint_of(path: str) -> str:
    """The label of a path in metrics: a closed set, whatever clients ask for."""
    if path in ADMITTED_PATHS or path in _PLAIN_PATHS or path in ADMIN_PATHS:
        return path
    return "/v1/models/{id}" if path.startswith("/v1/models/") else "other"
