"""Mixed traffic for minutes, with a worker killed every 20 seconds: nothing may be wrong or grow.

Of each pool one worker is killed over and over; the other one lives through all of it, watched.

    python tests/support/soak.py [--minutes M] [--shallow]

The last line is one JSON object; its `passed` says what the exit status says.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from answer_stream import MODEL_ID
from fault_course import CONFIG
from fault_fleet import WORKERS, FaultFleet, fault_fleet, num_sockets, token_ids
from nursery import open_nursery
from shallow_model import write_shallow_model

from segue.cluster.config.environment import cache_folder
from segue.cluster.config.file import parse_config
from segue.cluster.config.model import ModelConfig
from segue.workers.models.folder import resolve_model

KILL_EVERY_SECONDS = 20.0
SAMPLE_EVERY_SECONDS = 5.0
NUM_CLIENTS = 4
HANG_UP_SHARE = 0.1
ANSWER_SECONDS = 75.0
SETTLE_SECONDS = 60.0
SURVIVORS = ("gateway", "controller", "prefill-1", "decode-1")
# What a process that lives through all of it may gain after its first fifth.
SPARE = {"rss_bytes": 64 * 2**20, "threads": 4, "sockets": 6, "descriptors": 12}
KINDS = [
    (token_ids(100 + i, length), count)
    for i, (length, count) in enumerate(
        [(9, 30), (40, 8), (64, 24), (130, 16), (200, 40), (270, 5), (390, 12)]
    )
]


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process holds."""

    rss_bytes: int
    threads: int
    sockets: int
    descriptors: int  # the sockets included


@dataclass(slots=True)
class Tally:
    finished: int = 0
    hung_up: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    pids: dict[str, set[int]] = field(default_factory=dict)  # of those that nobody kills


class Soak:
    def __init__(self, fleet: FaultFleet, seconds: float) -> None:
        self._fleet = fleet
        self._end = time.monotonic() + seconds
        self._random = random.Random(1)
        self._texts: list[list[int]] = []
        self.tally = Tally()

    async def run(self) -> dict[str, Any]:
        await self._learn_texts()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_CLIENTS):
                tasks.create_task(self._client())
            tasks.create_task(self._kill())
            tasks.create_task(self._sample())
        left_over = await self._left_over()
        return self._report(left_over)

    async def _learn_texts(self) -> None:
        for prompt, count in KINDS:
            answer = self._fleet.ask(prompt, count)
            await answer.wait(ANSWER_SECONDS)
            if len(answer.tokens) != count:
                raise RuntimeError(f"the undisturbed run failed: {answer.error}")
            self._texts.append(answer.tokens)

    async def _pause(self, seconds: float) -> bool:
        """False if the end comes first."""
        left = self._end - time.monotonic()
        await asyncio.sleep(max(0.0, min(seconds, left)))
        return left > seconds

    async def _client(self) -> None:
        while time.monotonic() < self._end:
            kind = self._random.randrange(len(KINDS))
            answer = self._fleet.ask(*KINDS[kind])
            if self._random.random() < HANG_UP_SHARE:
                await asyncio.sleep(self._random.random())
                answer.hang_up()
                await answer.wait(ANSWER_SECONDS)
                self.tally.hung_up += 1
                continue
            await answer.wait(ANSWER_SECONDS)
            if answer.tokens != self._texts[kind][: len(answer.tokens)]:
                self.tally.wrong.append(f"kind {kind}: {answer.tokens}")
            elif answer.error:
                self.tally.errors[answer.error[:100]] += 1
                await asyncio.sleep(0.5)
            elif len(answer.tokens) < len(self._texts[kind]):
                self.tally.wrong.append(f"kind {kind}: ended after {len(answer.tokens)} tokens")
            else:
                self.tally.finished += 1

    async def _kill(self) -> None:
        for worker_id in itertools.cycle(WORKERS.values()):
            if not await self._pause(KILL_EVERY_SECONDS):
                return
            if (pid := self._fleet.pid(worker_id)) is not None:
                with suppress(ProcessLookupError):  # it has not come back from the last time
                    os.kill(pid, signal.SIGKILL)
                    self.tally.kills += 1

    async def _sample(self) -> None:
        """Of the processes that are never killed."""
        while await self._pause(SAMPLE_EVERY_SECONDS):
            for place in SURVIVORS:
                if (pid := self._fleet.pid(place)) is None:
                    continue
                self.tally.pids.setdefault(place, set()).add(pid)
                with suppress(psutil.NoSuchProcess):
                    self.tally.samples.setdefault(place, []).append(_measured(pid))

    async def _left_over(self) -> dict[str, Any]:
        await self._fleet.ready()
        end = time.monotonic() + SETTLE_SECONDS
        while (held := await self._fleet.held()) and time.monotonic() < end:
            await asyncio.sleep(0.5)
        return held

    def _report(self, left_over: dict[str, Any]) -> dict[str, Any]:
        tally = self.tally
        growth = {place: _growth(samples) for place, samples in tally.samples.items()}
        grown = [
            f"{place}: {name}"
            for place, found in growth.items()
            for name, spare in SPARE.items()
            if found[name] > spare
        ]
        died = [place for place, pids in tally.pids.items() if len(pids) > 1]
        return {
            "kills": tally.kills,
            "finished": tally.finished,
            "hung_up": tally.hung_up,
            "wrong": tally.wrong,
            "errors": dict(tally.errors),
            "left_over": left_over,
            "growth": growth,
            "grown": grown,
            "died": died,
            "passed": not (tally.wrong or left_over or grown or died) and tally.finished > 0,
        }


def _measured(pid: int) -> Sample:
    process = psutil.Process(pid)
    with process.oneshot():
        memory, threads = process.memory_info().rss, process.num_threads()
    return Sample(memory, threads, num_sockets(pid), process.num_fds())


def _growth(samples: list[Sample]) -> dict[str, int]:
    """From the first fifth to the last: medians, so that a single burst is no growth."""
    share = max(1, len(samples) // 5)
    early, late = samples[:share], samples[-share:]

    def median(of: list[Sample], name: str) -> int:
        values = sorted(int(getattr(sample, name)) for sample in of)
        return values[len(values) // 2]

    return {name: median(late, name) - median(early, name) for name in SPARE}


async def soak(minutes: float, *, shallow: bool) -> dict[str, Any]:
    model = resolve_model(ModelConfig(), cache_folder())  # pyright: ignore[reportCallIssue]
    with tempfile.TemporaryDirectory(prefix="segue-") as name:
        root = Path(name)
        folder = root / "fleet"
        folder.mkdir()
        if shallow:
            model = write_shallow_model(model, root / "model")
        pools = {name: {**pool, "num_replicas": 2} for name, pool in CONFIG["pools"].items()}
        config = parse_config(
            {**CONFIG, "pools": pools, "model": {"path": str(model), "id": MODEL_ID}}
        )
        async with (
            open_nursery(root) as nursery,
            fault_fleet(nursery, config, model, folder) as fleet,
        ):
            return {"minutes": minutes, **await Soak(fleet, 60 * minutes).run()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--shallow", action="store_true", help="two layers of the model")
    options = parser.parse_args(arguments)
    report = asyncio.run(soak(options.minutes, shallow=options.shallow))
    print(json.dumps(report))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
