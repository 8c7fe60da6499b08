"""What the fuzzer does to a deployment while clients ask: moves, drains, faults, deaths."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx
from fault_fleet import FaultFleet
from fault_plan import PlanFile
from fuzz_client import Tally

WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")
DECODE_WORKERS = ("decode-0", "decode-1")
MOVE_EVERY_SECONDS = 0.1
STRIKE_EVERY_SECONDS = 1.0
DRAIN_EVERY_SECONDS = 15.0
STOP_SECONDS = 3.0
CALLS = ("submit", "reserve", "announce", "release", "renew", "cancel", "abort")


class Strikes:
    """`done` counts what was struck, by name."""

    def __init__(self, fleet: FaultFleet, tally: Tally, source: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._fleet = fleet
        self._tally = tally
        self._source = source
        self._http = httpx.AsyncClient(base_url=fleet.url, timeout=30.0)

    async def move(self) -> None:
        """For ever: let a running request go on at another worker."""
        while True:
            await asyncio.sleep(self._source.random() * 2 * MOVE_EVERY_SECONDS)
            if self._tally.written:
                request = self._source.choice(list(self._tally.written))
                worker = self._source.choice(DECODE_WORKERS)
                body = {"request": request, "worker": worker}
                await self._order("migrate", body, "moves")

    async def drain(self) -> None:
        """For ever: empty a worker, which leaves and is replaced."""
        while True:
            await asyncio.sleep(DRAIN_EVERY_SECONDS * (0.5 + self._source.random()))
            await self._order("drain", {"worker": self._source.choice(WORKERS)}, "drains")

    async def strike(self) -> None:
        """For ever: one fault after another, each for a moment."""
        kinds: list[Callable[[str], Awaitable[None]]] = [
            *(self._reads, self._reads, self._calls, self._calls),
            *(self._slow, self._kill, self._stop),
        ]
        while True:
            await asyncio.sleep(self._source.random() * 2 * STRIKE_EVERY_SECONDS)
            await self._source.choice(kinds)(self._source.choice(WORKERS))

    async def end(self) -> None:
        """Nothing goes wrong any more."""
        for worker in WORKERS:
            self._plan(worker).clear()
            self._signal(worker, signal.SIGCONT)
        await self._http.aclose()

    async def _reads(self, worker: str) -> None:
        kind = self._source.choice(("corrupt", "fail", "stall"))
        self.done[f"reads that {kind}"] += 1
        self._plan(worker).change(reads=kind)
        await self._moment(worker)

    async def _calls(self, worker: str) -> None:
        kind = self._source.choice(("held", "twice", "unanswered"))
        self.done[f"calls {kind}"] += 1
        names = tuple(self._source.sample(CALLS, 2))
        self._plan(worker).change(**{kind: names})
        await self._moment(worker)

    async def _slow(self, worker: str) -> None:
        self.done["slow steps"] += 1
        self._plan(worker).change(step_s=0.05, read_delay_s=0.1)
        await self._moment(worker)

    async def _moment(self, worker: str) -> None:
        await asyncio.sleep(self._source.random() * 0.8)
        self._plan(worker).clear()

    async def _kill(self, worker: str) -> None:
        if self._source.random() < 0.3:  # rarer than the rest: a new life takes seconds
            self.done["deaths"] += 1
            self._signal(worker, signal.SIGKILL)

    async def _stop(self, worker: str) -> None:
        if self._source.random() < 0.3:
            self.done["stops"] += 1
            self._signal(worker, signal.SIGSTOP)
            try:
                await asyncio.sleep(self._source.random() * STOP_SECONDS)
            finally:
                self._signal(worker, signal.SIGCONT)

    def _signal(self, worker: str, signum: int) -> None:
        if (pid := self._fleet.pid(worker)) is not None:
            with suppress(ProcessLookupError):  # its next life has not come yet
                os.kill(pid, signum)

    def _plan(self, worker: str) -> PlanFile:
        return self._fleet.plans.setdefault(worker, PlanFile(self._fleet.folder, worker))

    async def _order(self, what: str, body: dict[str, str], name: str) -> None:
        """Refusals are fine: the request has just ended, the worker has just died."""
        try:
            response = await self._http.post(f"/admin/{what}", json=body)
        except httpx.TransportError as error:
            self._tally.wrong.append(f"/admin/{what}: {error!r}")
            return
        if response.status_code == 200:
            self.done[name] += 1
        elif response.status_code in (400, 503):
            self.done[f"{name} refused"] += 1
        else:
            self._tally.wrong.append(f"/admin/{what}: {response.status_code} {response.text}")
