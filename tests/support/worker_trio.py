"""A prefill and two decode workers in one process, and a request that moves between the two."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from engine_parts import expected_tokens
from local_fleet import Answer
from worker_pair import Node, NodeKind, Pair, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.worker_api import WorkerApi
from segue.router.migration import Migration, Migrations
from segue.workers.service import WorkerService

PROMPT = range(9)
NUM_TOKENS = 60
Calls = Callable[[WorkerService], WorkerApi]
TEXT = expected_tokens(PROMPT, NUM_TOKENS)


@dataclass
class Trio:
    """decode-0 is the source: of two idle ones the policy takes the first."""

    pair: Pair
    source: Node
    target: Node
    migrations: Migrations
    num_asked: int = 0

    @property
    def name(self) -> str:
        """Of the newest request; the first is r1."""
        return f"r{self.num_asked}"

    async def newest(self) -> Migration:
        return await self.migrations.migrate(self.name, "decode-1")

    @property
    def outcomes(self) -> dict[str, int]:
        return dict(self.pair.journeys.counters.migrations)

    async def ask(
        self, at: int, act: Callable[[], Awaitable[object]], num_tokens: int = NUM_TOKENS
    ) -> tuple[Answer, object]:
        """Begin to `act` at token `at`; what came of it, an error included, is returned."""
        acting: list[asyncio.Future[object]] = []

        async def unhurried() -> object:
            """A busy machine must not let the answer end before it could move."""
            self.pace(0.03)
            try:
                return await act()
            finally:
                self.pace(0.002)

        def on_token(answer: Answer) -> None:
            if len(answer.tokens) >= at and not acting:
                acting.append(asyncio.ensure_future(unhurried()))

        self.num_asked += 1
        answer = await self.pair.ask(PROMPT, num_tokens, request_id=self.name, on_token=on_token)
        (result,) = await asyncio.gather(*acting, return_exceptions=True)
        return answer, result

    def pace(self, step_seconds: float) -> None:
        for node in (self.source, self.target):
            node.runner.step_seconds = step_seconds

    async def move(self, at: int, num_tokens: int = NUM_TOKENS) -> tuple[Answer, object]:
        return await self.ask(at, self.newest, num_tokens)

    async def settled(self) -> None:
        await self.pair.settled(self.pair.prefill, self.source, self.target)
        assert not self.pair.journeys.load.answers and not self.pair.journeys.load.context_tokens

    def goes_on_where_it_was(self, answer: Answer) -> None:
        assert answer.tokens == TEXT
        assert self.source.service.attempts.ended == {"length": 1}
        assert not self.pair.journeys.counters.failures


@asynccontextmanager
async def trio(
    *,
    source: type[WorkerService] = WorkerService,
    target: type[WorkerService] = WorkerService,
    transfer: TransferConfig | None = None,
    max_attempts: int = 1,
    num_blocks: int = 32,
    source_calls: Calls = lambda service: service,
    target_calls: Calls = lambda service: service,
) -> AsyncIterator[Trio]:
    transfer = transfer or TransferConfig(
        transport="loopback", read_timeout_s=0.5, migration_wait_s=1.0, migration_pause_s=1.0
    )
    async with worker_pair(
        transfer,
        decode_kind=NodeKind(source, calls=source_calls),
        max_attempts=max_attempts,
        num_blocks=num_blocks,
    ) as pair:
        kind = NodeKind(target, calls=target_calls)
        other = await pair.another("decode", "decode-1", kind)
        pair.show(pair.prefill, pair.decode, other)
        await pair.until(lambda: pair.links.usable(other.identity))
        migrations = Migrations(pair.journeys, pair.links, lambda: pair.watcher.view)
        three = Trio(pair, pair.decode, other, migrations)
        three.pace(0.002)
        yield three
