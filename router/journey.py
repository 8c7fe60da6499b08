"""One request from prompt to last token, across workers that may fail. Read this first.

    bind (policy) -> submit -> first token from the prefill worker -> tokens from the decode worker
      ^                                                                            |
      `---- whatever fails: prefill again from prompt + produced tokens <----------'

The token log is the only state that outlives an attempt. Tokens are a function of the request and
their position, so a second attempt continues the text as if nothing had happened.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from segue.cluster.config.gateway import RecoveryConfig
from segue.cluster.errors import (
    AttemptFailed,
    DeadlineExceeded,
    FailureKind,
    SegueError,
    StaleReference,
    Unavailable,
)
from segue.cluster.fleet import FleetView, WorkerView
from segue.cluster.handoff import Assignment
from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.cluster.request import GenerationRequest, TokenLog
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.router.binder import Binder
from segue.router.flight import UNTRIED, Flight, Heard
from segue.router.generation import TokensEvent
from segue.router.links import WorkerLinks
from segue.router.policy import Binding, Load, Rung
from segue.router.progress import Progress

logger = logging.getLogger(__name__)

SUBMIT_SECONDS = 5.0
RETRY_PAUSE_SECONDS = 0.1


@dataclass(slots=True)
class JourneyCounters:
    """Counted where it happens; exported by fleet_metrics."""

    rungs: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)  # of attempts, by FailureKind
    recovered: int = 0  # requests that finished after at least one failed attempt
    migrations: Counter[str] = field(default_factory=Counter)  # by outcome
    rebindings: Counter[str] = field(default_factory=Counter)  # by outcome
    num_waiting: Callable[[], int] = lambda: 0  # now: for workers to come back, or to have room


class Journeys:
    """Implements Generator over the fleet."""

    def __init__(
        self,
        watcher: FleetWatcher,
        links: WorkerLinks,
        recovery: RecoveryConfig,
        request_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        retry_after_s: int = 1,
    ) -> None:
        self._links = links
        self._recovery = recovery
        self._request_timeout_s = request_timeout_s
        self._clock = clock
        self.load = Load()
        self._binder = Binder(watcher, links, self.load, recovery, retry_after_s, clock)
        self.running: dict[str, Progress] = {}  # by request id
        self.counters = JourneyCounters(num_waiting=lambda: self._binder.num_waiting)
        watcher.on_change(links.on_fleet_change)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokensEvent, None]:
        now = self._clock()
        log = TokenLog(request.num_prompt_tokens)
        progress = Progress(request, log, now, deadline=now + self._request_timeout_s)
        self.running[request.request_id] = progress
        try:
            async with aclosing(self._attempts(progress)) as events:
                async for event in events:
                    yield event
        finally:
            if self.running.get(request.request_id) is progress:
                del self.running[request.request_id]

    async def _attempts(self, progress: Progress) -> AsyncGenerator[TokensEvent, None]:
        while True:
            progress.tries += 1
            binding = await self._bind(progress)
            try:
                async with aclosing(self._run(progress, binding)) as events:
                    async for event in events:
                        if event.finish is not None and progress.tries > 1:
                            self.counters.recovered += 1
                        yield event
                        if event.finish is not None:
                            return
            except AttemptFailed as error:
                self._note_failure(progress, error)
                if error.failure in UNTRIED:
                    continue
            await asyncio.sleep(RETRY_PAUSE_SECONDS * progress.tries)

    # -- choosing ----------------------------------------------------------------------------

    def ready(self, view: FleetView) -> list[WorkerView]:
        """The workers that a request may be given to."""
        return self._binder.ready(view)

    def usable(self, view: FleetView) -> list[WorkerView]:
        """With those that the controller alone does not hear."""
        return self._binder.usable(view)

    async def _bind(self, progress: Progress) -> Binding:
        try:
            binding = await self._binder.bind(progress)
        except SegueError:
            self.counters.rungs[Rung.REFUSED.value] += 1
            raise
        again = binding.rung is Rung.DISAGGREGATED and progress.tries > 1
        self.counters.rungs[Rung.OTHER_PAIR.value if again else binding.rung.value] += 1
        return binding

    # -- one attempt -------------------------------------------------------------------------

    async def _run(self, progress: Progress, binding: Binding) -> AsyncGenerator[TokensEvent, None]:
        """Events of one attempt; raises AttemptFailed, DeadlineExceeded. Leaves nothing behind."""
        log = progress.log
        flight = progress.flight = Flight(
            self._links,
            self.load,
            progress.next_attempt(),
            binding,
            log.next_position,
            self._clock,
        )
        finished = False
        try:
            await self._submit(progress, flight.attempt, binding)
            async with aclosing(self._follow(progress, flight)) as events:
                async for event in events:
                    finished = event.finish is not None
                    yield event
        finally:
            progress.flight = None
            flight.end(finished=finished)

    async def _submit(self, progress: Progress, attempt: AttemptId, binding: Binding) -> None:
        now = self._clock()
        assignment = Assignment(
            progress.request,
            attempt.attempt,
            tuple(progress.log.produced),
            self._links.gateway_id,
            max(0.001, progress.deadline - now),
            max(0.0, now - progress.arrived),
        )
        client = self._links.client(binding.prefill.identity)
        if client is None:
            raise AttemptFailed(FailureKind.WORKER_LOST, f"{binding.prefill.identity} is gone")
        decode = None if binding.decode is None else binding.decode.peer
        try:
            await client.submit(assignment, decode, deadline_s=SUBMIT_SECONDS)
        except (Unavailable, StaleReference, DeadlineExceeded) as error:
            progress.failed_on.add(binding.prefill.identity)
            raise AttemptFailed(FailureKind.WORKER_LOST, error.message) from error
        except AttemptFailed as error:
            self._blame(progress, binding.prefill.identity, error.failure)
            raise
        except SegueError as error:
            raise AttemptFailed(FailureKind.REFUSED, error.message, retryable=False) from error

    async def _follow(
        self, progress: Progress, flight: Flight
    ) -> AsyncGenerator[TokensEvent, None]:
        log = progress.log
        while True:
            heard = await self._next(progress, flight)
            delta = heard.delta
            if delta.token_ids:
                first = not log.produced
                try:
                    fresh = log.accept(delta.position, delta.token_ids)
                except ValueError as error:
                    raise AttemptFailed(FailureKind.WORKER_LOST, str(error)) from error
                if fresh:
                    progress.full_since = None
                    self._binder.took(flight.binding)
                if fresh or delta.finish is not None:
                    cached = delta.cached_tokens if first else 0
                    pool = flight.binding.drawer(first=first).pool
                    yield TokensEvent(fresh, delta.finish, cached, pool)
            if delta.finish is not None:
                return
            if delta.failure is not None:
                self._blame(progress, heard.culprit, delta.failure.kind)
                raise delta.failure.to_error()

    async def _next(self, progress: Progress, flight: Flight) -> Heard:
        try:
            async with asyncio.timeout(max(0.0, progress.deadline - self._clock())):
                return await flight.heard.get()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the request did not finish within {self._request_timeout_s:g} s"
            ) from None

    def _blame(self, progress: Progress, worker: WorkerIdentity, kind: FailureKind) -> None:
        if kind is FailureKind.DRAINING:
            self._binder.leaves(worker)
        elif kind is FailureKind.BUSY:
            self._binder.is_full(worker)
        else:
            progress.failed_on.add(worker)

    def _note_failure(self, progress: Progress, error: AttemptFailed) -> None:
        """Count it; raise unless another attempt may succeed."""
        self.counters.failures[error.failure.value] += 1
        if error.failure in UNTRIED:
            progress.tries -= 1
            logger.debug("%s is turned away: %s", progress.request.request_id, error)
            return
        progress.full_since = None  # somebody had room for it
        logger.warning(
            "try %d of %s failed (%s)", progress.tries, progress.request.request_id, error
        )
        if error.failure is FailureKind.DEADLINE:
            raise DeadlineExceeded(error.message) from error
        if not error.retryable:
            raise error
        if progress.tries >= self._recovery.max_attempts:
            self.counters.rungs[Rung.REFUSED.value] += 1
            message = f"gave up after {progress.tries} attempts; the last one: {error.message}"
            raise Unavailable(message) from error
