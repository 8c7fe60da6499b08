"""POST /tokenize and /detokenize: the model's tokenizer, as the generation routes use it."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from segue.cluster.errors import DeadlineExceeded
from segue.router.api_types import DetokenizeBody, TokenizeBody, request_schema
from segue.router.request_body import read_body
from segue.router.service import Service


def tokenize_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", response_model=None, openapi_extra=request_schema(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        return await _answer(request, service, "tokenize")

    @router.post("/detokenize", response_model=None, openapi_extra=request_schema(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        return await _answer(request, service, "detokenize")

    return router


async def _answer(request: Request, service: Service, job: str) -> Response:
    limits = service.config.admission
    try:
        async with asyncio.timeout(limits.request_timeout_s):
            data = await read_body(request, limits.max_body_bytes)
            answer = await service.texts.run(job, data)
    except TimeoutError:
        raise DeadlineExceeded("the request took longer than request_timeout_s") from None
    return Response(answer, media_type="application/json")
