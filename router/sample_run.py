"""Runs all samples of one request at once and merges what they produce into one sequence.

A pump per sample drives its generator and assembles its text. The first failure ends the run:
it is raised to the reader, after what came before it, and the other generators are closed.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from segue.cluster.errors import DeadlineExceeded, InternalError, SegueError
from segue.cluster.request import FinishReason, GenerationRequest
from segue.router.exchange import Exchange
from segue.router.generation import TokensEvent
from segue.router.request_plan import RequestPlan
from segue.router.service import Service
from segue.router.text_assembler import Piece, TextAssembler

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
_MAX_UNREAD = 64  # outputs a slow reader may leave; then the pumps wait


@dataclass(frozen=True, slots=True)
class Output:
    index: int  # of the choice
    piece: Piece
    num_total_tokens: int = 0  # completion tokens of the whole request, this piece included


class SampleRun:
    """Use as an async context manager: leaving it closes every generator."""

    def __init__(
        self, plan: RequestPlan, service: Service, exchange: Exchange, deadline: float
    ) -> None:
        self._plan = plan
        self._service = service
        self._exchange = exchange
        self._deadline = deadline  # of the event loop's clock
        self._outputs: asyncio.Queue[Output | SegueError] = asyncio.Queue(_MAX_UNREAD)
        self._failure: SegueError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_running = len(plan.requests)
        self._num_started = 0
        self._closed = False
        self._cached_tokens = 0
        self.num_completion_tokens = 0

    @property
    def finished(self) -> bool:
        """True once the last output of every sample has been read."""
        return self._num_running == 0

    async def __aenter__(self) -> Self:
        self._service.names.add(self._exchange.request_id, self._request_ids())
        self._service.draining.add(self._break_off)
        for index, request in enumerate(self._plan.requests):
            task = asyncio.create_task(self._pump(index, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _request_ids(self) -> list[str]:
        return [request.request_id for request in self._plan.requests]

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._service.draining.discard(self._break_off)
            self._service.names.remove(self._exchange.request_id, self._request_ids())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            if pending:
                log.error("request %s: a generator does not close", self._exchange.request_id)

    def _break_off(self, error: SegueError) -> None:
        """It cannot be waited for: whoever reads is told, now or next."""
        if self._failure is None and not self.finished:
            self._failure = error
            if self._outputs.empty():  # somebody may be waiting for what comes
                self._outputs.put_nowait(error)

    async def read(self, wait_seconds: float) -> list[Output]:
        """All outputs at hand, at least one; none if nothing came within `wait_seconds`.

        Raises what a sample raised, or DeadlineExceeded. Not to be called once `finished`.
        """
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now >= self._deadline:  # also if there is always something to read
            raise DeadlineExceeded("the request took longer than request_timeout_s")
        try:
            async with asyncio.timeout_at(min(now + wait_seconds, self._deadline)):
                first = await self._outputs.get()
        except TimeoutError:
            if loop.time() < self._deadline:
                return []
            raise DeadlineExceeded("the request took longer than request_timeout_s") from None
        return self._collect(first)

    def usage(self, completion: int) -> dict[str, Any]:
        prompt = self._plan.num_prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }

    def _collect(self, item: Output | SegueError) -> list[Output]:
        outputs: list[Output] = []
        while isinstance(item, Output):
            self.num_completion_tokens += len(item.piece.token_ids)
            outputs.append(Output(item.index, item.piece, self.num_completion_tokens))
            self._num_running -= item.piece.finish is not None
            if self._outputs.empty():
                return outputs
            item = self._outputs.get_nowait()
        self._failure = item
        if not outputs:
            raise item
        return outputs

    async def _pump(self, index: int, request: GenerationRequest) -> None:
        events = self._service.generator.generate(request)
        try:
            await self._drain(index, events)
        except SegueError as error:
            await self._outputs.put(error)
        except Exception as error:
            log.exception("request %s: sample %d failed", self._exchange.request_id, index)
            failure = InternalError(f"{type(error).__name__} in the generator")
            await self._outputs.put(failure)
        finally:
            await events.aclose()

    async def _drain(self, index: int, events: AsyncGenerator[TokensEvent, None]) -> None:
        assembler = TextAssembler(self._service.tokens, self._plan.text)
        first = last = None
        async for event in events:
            now = time.monotonic()
            first = now if first is None else first
            self._measure(index, event, None if last is None else now - last)
            if event.finish is not None:
                self._service.metrics.decoded(now - first, event.pool)
            last = now
            if event.finish is FinishReason.ABORT:
                raise InternalError("the request was aborted inside the cluster")
            piece = assembler.feed(event.token_ids, event.finish)
            if piece.finish is None:
                await self._outputs.put(Output(index, piece))
            elif event.finish is None:
                await self._cut(Output(index, piece), events)
                return
            else:
                await self._outputs.put(Output(index, piece))
                await self._exhaust(events)
                return
        raise InternalError("the generation ended without a reason")

    async def _cut(self, output: Output, events: AsyncGenerator[TokensEvent, None]) -> None:
        """A stop string ended it: the workers must not go on while a slow client reads."""
        closing = asyncio.create_task(_aclose(events))
        try:
            await self._outputs.put(output)
        finally:
            await closing

    async def _exhaust(self, events: AsyncGenerator[TokensEvent, None]) -> None:
        """Let a generator that is done end by itself: closing one means to abort it."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                async for _ in events:
                    pass
        except Exception:  # the answer is whole: what is left can not spoil it
            log.exception("request %s: a generator ended badly", self._exchange.request_id)

    def _measure(self, index: int, event: TokensEvent, gap_seconds: float | None) -> None:
        metrics = self._service.metrics
        if gap_seconds is None:
            if self._num_started == 0:
                metrics.first_token(self._exchange, event.pool)
            self._num_started += 1
            if index % self._plan.n == 0:
                request = self._plan.requests[index]
                cached = min(event.cached_tokens, request.num_prompt_tokens)
                self._cached_tokens += cached
                metrics.prompt(request.num_prompt_tokens, cached)
                self._exchange.num_prompt_tokens += request.num_prompt_tokens
        self._exchange.num_output_tokens += len(event.token_ids)
        metrics.tokens(len(event.token_ids), gap_seconds, event.pool)


async def _aclose(events: AsyncGenerator[TokensEvent, None]) -> None:
    await events.aclose()
