"""POST /v1/completions and /v1/chat/completions: from the body to the answer, step by step."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from segue.cluster.errors import DeadlineExceeded
from segue.router.answer import streamed_answer, whole_answer
from segue.router.answer_form import AnswerForm, ChatForm, CompletionForm, Envelope
from segue.router.api_types import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    parse_body,
    request_schema,
)
from segue.router.exchange import Exchange, exchange_of
from segue.router.prompts import encode_chat, encode_prompt, read_prompts
from segue.router.request_body import read_json
from segue.router.request_plan import RequestPlan, check_options, plan_requests
from segue.router.sample_run import SampleRun
from segue.router.service import Service
from segue.router.unknown_fields import IGNORED_HEADER, ignored_fields
from segue.router.unsupported import (
    UNSUPPORTED_CHAT,
    UNSUPPORTED_COMPLETION,
    refuse_unsupported,
)

_Plan = Callable[[dict[str, Any], Service, Exchange], Awaitable[RequestPlan]]


def generation_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions", response_model=None, openapi_extra=request_schema(CompletionBody)
    )
    async def completions(request: Request) -> Response:
        return await _answer(request, service, plan_completion, CompletionForm)

    @router.post(
        "/v1/chat/completions", response_model=None, openapi_extra=request_schema(ChatBody)
    )
    async def chat_completions(request: Request) -> Response:
        return await _answer(request, service, plan_chat, ChatForm)

    return router


async def plan_completion(
    data: dict[str, Any], service: Service, exchange: Exchange
) -> RequestPlan:
    refuse_unsupported(data, UNSUPPORTED_COMPLETION)
    body = parse_body(CompletionBody, data, UNSUPPORTED_COMPLETION)
    _note_ignored(body, UNSUPPORTED_COMPLETION, exchange)
    check_options(body, service.card)
    exchange.request_id = _chosen_id(body.request_id, exchange)
    special = body.add_special_tokens is not False
    prompts = [
        await encode_prompt(prompt, special, service)
        for prompt in read_prompts(body.prompt, body.n or 1, service.card)
    ]
    return plan_requests(body, prompts, service.card)


async def plan_chat(data: dict[str, Any], service: Service, exchange: Exchange) -> RequestPlan:
    refuse_unsupported(data, UNSUPPORTED_CHAT)
    body = parse_body(ChatBody, data, UNSUPPORTED_CHAT)
    _note_ignored(body, UNSUPPORTED_CHAT, exchange)
    check_options(body, service.card)
    exchange.request_id = _chosen_id(body.request_id, exchange)
    return plan_requests(body, [await encode_chat(body, service)], service.card)


async def _answer(
    request: Request, service: Service, plan_of: _Plan, form_of: Callable[[Envelope], AnswerForm]
) -> Response:
    exchange = exchange_of(request.scope)
    limits = service.config.admission
    deadline = asyncio.get_running_loop().time() + limits.request_timeout_s
    try:
        async with asyncio.timeout_at(deadline):
            data = await read_json(request, limits.max_body_bytes)
            plan = await plan_of(data, service, exchange)
    except TimeoutError:
        raise DeadlineExceeded("the request took longer than request_timeout_s") from None
    form = form_of(Envelope(exchange.request_id, int(time.time()), service.card.id))
    run = SampleRun(plan, service, exchange, deadline)
    # The exchange closes the run, however it ends: there is no moment without an owner.
    await exchange.exits.enter_async_context(run)
    if plan.stream:
        return await streamed_answer(run, plan, form, exchange, service.keep_alive_seconds)
    return await whole_answer(run, plan, form)


def _note_ignored(body: GenerationBody, neutral: Collection[str], exchange: Exchange) -> None:
    """The client learns which of its fields nobody here knows."""
    if unknown := [name for name in body.model_extra or () if name not in neutral]:
        exchange.headers[IGNORED_HEADER] = ignored_fields(unknown)


def _chosen_id(from_body: str | None, exchange: Exchange) -> str:
    """The header goes before the body's request_id, and that before a generated name."""
    return exchange.request_id if exchange.id_from_client else from_body or exchange.request_id
