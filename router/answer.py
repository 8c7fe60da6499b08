"""Writes the answer of a run, streamed or whole, in the form the client asked for."""

import logging
from collections.abc import AsyncIterator, Sequence

from starlette.responses import Response, StreamingResponse

from segue.cluster.errors import InternalError, SegueError
from segue.router.answer_form import (
    DONE,
    KEEP_ALIVE,
    AnswerForm,
    Choice,
    error_frame,
    usage_member,
)
from segue.router.error_body import public_error
from segue.router.exchange import Exchange
from segue.router.request_plan import RequestPlan
from segue.router.sample_run import Output, SampleRun

log = logging.getLogger(__name__)

_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_WHOLE_READ_SECONDS = 60.0  # only the run's own deadline ends the wait


async def whole_answer(run: SampleRun, plan: RequestPlan, form: AnswerForm) -> Response:
    texts: list[list[str]] = [[] for _ in plan.requests]
    tokens: list[list[int]] = [[] for _ in plan.requests]
    choices: list[Choice] = []
    while not run.finished:
        for output in await run.read(_WHOLE_READ_SECONDS):
            index, piece = output.index, output.piece
            texts[index].append(piece.text)
            tokens[index] += piece.token_ids
            if piece.finish is None:
                continue
            choice = Choice(
                index=index,
                text="".join(texts[index]),
                finish=piece.finish,
                stop_reason=piece.stop_reason,
                token_ids=tokens[index] if plan.return_token_ids else None,
                prompt_token_ids=_prompt(plan, index),
            )
            choices.append(choice)
    choices.sort(key=lambda choice: choice.index)
    body = form.whole(choices, run.usage(run.num_completion_tokens))
    return Response(body, media_type="application/json")


async def streamed_answer(
    run: SampleRun,
    plan: RequestPlan,
    form: AnswerForm,
    exchange: Exchange,
    keep_alive_seconds: float,
) -> Response:
    """Waits for the first output, so that what fails before it can still be a plain status.

    If that takes longer than a keep-alive interval, the answer begins with a comment instead.
    """
    first = await run.read(keep_alive_seconds)
    stream = _Stream(run, plan, form, exchange)
    return StreamingResponse(
        stream.frames(first, keep_alive_seconds),
        media_type="text/event-stream",
        headers=_STREAM_HEADERS,
    )


class _Stream:
    def __init__(
        self, run: SampleRun, plan: RequestPlan, form: AnswerForm, exchange: Exchange
    ) -> None:
        self._run = run
        self._plan = plan
        self._form = form
        self._exchange = exchange
        self._opened: set[int] = set()

    async def frames(
        self, outputs: Sequence[Output], keep_alive_seconds: float
    ) -> AsyncIterator[bytes]:
        try:
            while True:
                if not outputs:
                    yield KEEP_ALIVE
                elif chunks := b"".join(self._chunks(output) for output in outputs):
                    yield chunks
                if self._run.finished:
                    break
                outputs = await self._run.read(keep_alive_seconds)
            if self._plan.include_usage:
                yield self._form.usage(self._run.usage(self._run.num_completion_tokens))
        except SegueError as error:
            yield await self._broken(error)
        except Exception as error:
            log.exception("request %s: the stream failed", self._exchange.request_id)
            yield await self._broken(InternalError(str(error)))
        yield DONE

    async def _broken(self, error: SegueError) -> bytes:
        self._exchange.fail(error.http_status)
        log.error("request %s broke: %s", self._exchange.request_id, error.message)
        await self._run.close()
        return error_frame(public_error(error))

    def _chunks(self, output: Output) -> bytes:
        """The chunks of one output; none if all of its text is held back."""
        index, piece, form = output.index, output.piece, self._form
        usage = self._usage(output)
        parts: list[bytes] = []
        if index not in self._opened:
            self._opened.add(index)
            parts.append(form.opening(index, _prompt(self._plan, index), usage))
        tokens = piece.token_ids if self._plan.return_token_ids else None
        if piece.text or (tokens and piece.finish is None):
            parts.append(form.delta(index, piece.text, tokens, usage))
            tokens = None if tokens is None else ()
        if piece.finish is not None:
            parts.append(form.final(index, piece.finish, piece.stop_reason, tokens, usage))
        return b"".join(parts)

    def _usage(self, output: Output) -> bytes:
        if self._plan.continuous_usage:
            return usage_member(self._run.usage(output.num_total_tokens))
        # OpenAI: with include_usage every chunk has the field, null in all but the last.
        return usage_member(None) if self._plan.include_usage else b""


def _prompt(plan: RequestPlan, index: int) -> tuple[int, ...] | None:
    return plan.requests[index].prompt_token_ids if plan.return_token_ids else None
