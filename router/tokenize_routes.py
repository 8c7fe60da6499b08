"""POST /tokenize and /detokenize: the model's tokenizer, as the generation routes use it."""

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from segue.cluster.errors import DeadlineExceeded, InvalidRequest
from segue.router.api_types import DetokenizeBody, TokenizeBody, parse_body, request_schema
from segue.router.prompts import check_token_ids, encode_chat, encode_prompt
from segue.router.request_body import read_json
from segue.router.request_plan import check_model
from segue.router.service import Service


def tokenize_routes(service: Service) -> APIRouter:
    router = APIRouter()
    limits = service.config.admission

    @router.post("/tokenize", response_model=None, openapi_extra=request_schema(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        try:
            async with asyncio.timeout(limits.request_timeout_s):
                data = await read_json(request, limits.max_body_bytes)
                return _json(await _tokenize(parse_body(TokenizeBody, data), service))
        except TimeoutError:
            raise DeadlineExceeded("tokenizing took longer than request_timeout_s") from None

    @router.post("/detokenize", response_model=None, openapi_extra=request_schema(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        data = await read_json(request, limits.max_body_bytes)
        body = parse_body(DetokenizeBody, data)
        check_model(body.model, service.card)
        if body.tokens:
            check_token_ids(body.tokens, service.card, "tokens")
        return _json({"prompt": await service.tokenizer.decode(body.tokens)})

    return router


async def _tokenize(body: TokenizeBody, service: Service) -> dict[str, Any]:
    check_model(body.model, service.card)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.prompt is None:
        tokens = await encode_chat(body, service)
    else:
        tokens = await encode_prompt(body.prompt, body.add_special_tokens is not False, service)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": service.card.max_model_len,
        "tokens": tokens,
    }
    if body.return_token_strs:
        answer["token_strs"] = service.tokenizer.token_strings(tokens)
    return answer


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
