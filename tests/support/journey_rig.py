"""A gateway without HTTP over scripted workers: what a journey does with what they say."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from local_fleet import TOKEN
from scripted_worker import ScriptedWorker

from segue.cluster.config.gateway import RecoveryConfig
from segue.cluster.fleet import FleetView
from segue.cluster.launcher import StaticLocator
from segue.cluster.request import FinishReason, GenerationRequest, SamplingParams, StopRule
from segue.cluster.rpc.fleet_watcher import FleetWatcher
from segue.router.journey import Journeys
from segue.router.links import WorkerLinks

PROMPT = (7, 8, 9)  # so that the first answer token stands at 3


@dataclass(slots=True)
class Answer:
    task: asyncio.Task[None] | None = None
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None

    async def end(self) -> None:
        assert self.task is not None
        async with asyncio.timeout(10):
            await self.task


class Rig:
    """A gateway without HTTP, and scripted workers that it is shown."""

    def __init__(
        self, timeout_s: float = 10.0, retry_after_s: int = 1, **recovery: float | str
    ) -> None:
        self.watcher = FleetWatcher(StaticLocator("127.0.0.1:1"), TOKEN)
        self.links = WorkerLinks("gateway", TOKEN)
        self.journeys = Journeys(
            self.watcher,
            self.links,
            RecoveryConfig.model_validate(recovery),
            timeout_s,
            retry_after_s=retry_after_s,
        )

    def show(self, *workers: ScriptedWorker) -> None:
        self.watcher.view = FleetView(workers=tuple(worker.view for worker in workers))
        self.links.on_fleet_change(self.watcher.view)

    async def connect(self, *workers: ScriptedWorker) -> None:
        self.show(*workers)
        await until(lambda: all(self.links.usable(w.identity) for w in workers))

    def ask(self, name: str = "r", max_tokens: int = 8) -> Answer:
        answer = Answer()
        request = GenerationRequest(name, PROMPT, SamplingParams(), StopRule(max_tokens))

        async def run() -> None:
            async with aclosing(self.journeys.generate(request)) as events:
                async for event in events:
                    answer.tokens.extend(event.token_ids)
                    answer.finish = event.finish

        answer.task = asyncio.create_task(run())
        return answer

    async def close(self) -> None:
        await self.links.close()
        assert not self.journeys.load.answers and not self.journeys.load.context_tokens


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
