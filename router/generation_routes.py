"""POST /v1/completions and /v1/chat/completions: from the body to the answer, step by step."""

import asyncio
import time
from collections.abc import Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from segue.cluster.errors import DeadlineExceeded, InternalError
from segue.router.answer import streamed_answer, whole_answer
from segue.router.answer_form import AnswerForm, ChatForm, CompletionForm, Envelope
from segue.router.api_types import ChatBody, CompletionBody, request_schema
from segue.router.cache_salt import salted
from segue.router.exchange import Exchange, exchange_of
from segue.router.request_body import read_body
from segue.router.request_names import named
from segue.router.request_plan import RequestPlan
from segue.router.sample_run import SampleRun
from segue.router.service import Service
from segue.router.unknown_fields import IGNORED_HEADER


def generation_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions", response_model=None, openapi_extra=request_schema(CompletionBody)
    )
    async def completions(request: Request) -> Response:
        return await _answer(request, service, "completion", CompletionForm)

    @router.post(
        "/v1/chat/completions", response_model=None, openapi_extra=request_schema(ChatBody)
    )
    async def chat_completions(request: Request) -> Response:
        return await _answer(request, service, "chat", ChatForm)

    return router


async def _answer(
    request: Request, service: Service, job: str, form_of: Callable[[Envelope], AnswerForm]
) -> Response:
    exchange = exchange_of(request.scope)
    limits = service.config.admission
    deadline = asyncio.get_running_loop().time() + limits.request_timeout_s
    try:
        async with asyncio.timeout_at(deadline):
            data = await read_body(request, limits.max_body_bytes)
            plan = await _plan(job, data, service, exchange)
    except TimeoutError:
        raise DeadlineExceeded("the request took longer than request_timeout_s") from None
    form = form_of(Envelope(exchange.request_id, int(time.time()), service.card.id))
    run = SampleRun(plan, service, exchange, deadline)
    # The exchange closes the run, however it ends: there is no moment without an owner.
    await exchange.exits.enter_async_context(run)
    if plan.stream:
        return await streamed_answer(run, plan, form, exchange, service.keep_alive_seconds)
    return await whole_answer(run, plan, form)


async def _plan(job: str, data: bytes, service: Service, exchange: Exchange) -> RequestPlan:
    prepared = await service.texts.prepare(job, data)
    if prepared.ignored is not None:
        exchange.headers[IGNORED_HEADER] = prepared.ignored
    # The header goes before the body's request_id, and that before a generated name.
    if prepared.request_id is not None and not exchange.id_from_client:
        exchange.request_id, exchange.id_from_client = prepared.request_id, True
    if prepared.refusal is not None:
        raise prepared.refusal.error()
    if prepared.plan is None:
        raise InternalError("a request was neither planned nor refused")
    plan = named(prepared.plan, exchange)
    if exchange.tenant is None or service.config.cache_isolation == "shared":
        return plan
    return salted(plan, exchange.tenant)
