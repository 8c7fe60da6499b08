"""Random traffic on real workers while everything happens to them at once; every token is compared.

    python tests/support/fuzz.py [--seconds S] [--seed N]

Rounds of up to ROUND_SECONDS, each a new deployment with settings drawn from the seed: little
room, host tiers, salts, retention, moves, drains, hang-ups, late, failing and corrupt reads, calls
lost and doubled, deaths and stops. The last line: 'N answers, N wrong, N left over'.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_fleet import FaultFleet, fault_fleet, last_words
from fuzz_client import FuzzClient, Tally
from fuzz_draw import Question, draw_config, draw_questions
from fuzz_oracle import Oracle
from fuzz_strikes import Strikes
from nursery import NurseryClient, open_nursery
from shallow_model import write_shallow_model

from segue.cluster.config.environment import cache_folder
from segue.cluster.config.file import parse_config
from segue.cluster.config.model import ModelConfig
from segue.workers.models.folder import resolve_model

ROUND_SECONDS = 100.0
NUM_QUESTIONS = 40
NUM_CLIENTS = 8
SETTLE_SECONDS = 60.0

Known = list[tuple[Question, list[list[int]]]]


@dataclass(slots=True)
class Verdict:
    num_answers: int = 0
    wrong: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.num_answers > 0 and not self.wrong and not self.left_over

    @property
    def last_line(self) -> str:
        return (
            f"{self.num_answers} answers, {len(self.wrong)} wrong, {len(self.left_over)} left over"
        )


async def play_round(
    fleet: FaultFleet, known: Known, source: random.Random, seconds: float, verdict: Verdict
) -> None:
    """Clients ask for `seconds` while the deployment is struck; then nothing may be held."""
    tally, texts = Tally(), dict[int, dict[int, str]]()
    strikes = Strikes(fleet, tally, source)
    names = (f"fuzz-{number}" for number in itertools.count())
    end = time.monotonic() + seconds

    async def client(own: random.Random) -> None:
        asking = FuzzClient(fleet.url, known, texts, tally, own)
        try:
            while time.monotonic() < end:
                await asking.ask(next(names))
        finally:
            await asking.close()

    troubles = [
        asyncio.create_task(trouble)
        for trouble in (strikes.move(), strikes.drain(), strikes.strike())
    ]
    clients = [
        asyncio.create_task(client(random.Random(source.random()))) for _ in range(NUM_CLIENTS)
    ]
    try:
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        for trouble in troubles:
            trouble.cancel()
        await asyncio.gather(*troubles, return_exceptions=True)
        await strikes.end()
        await asyncio.gather(*clients)
    finally:
        for task in (*troubles, *clients):
            task.cancel()
        await asyncio.gather(*troubles, *clients, return_exceptions=True)
    verdict.num_answers += tally.num_answers
    verdict.wrong += tally.wrong
    verdict.left_over += await _left_over(fleet)
    print(f"  {tally.finished} finished, {tally.hung_up} hung up; struck {dict(strikes.done)}")
    for message, count in tally.refused.items():
        print(f"  refused {count} times: {message}")
    for line in (*tally.wrong, *verdict.left_over):
        print(f"  FAULT {line}")


async def _left_over(fleet: FaultFleet) -> list[str]:
    await fleet.ready()
    end = time.monotonic() + SETTLE_SECONDS
    while (held := await fleet.held()) and time.monotonic() < end:
        await asyncio.sleep(0.3)
    return [f"{worker} holds {what}: {n:g}" for worker in held for what, n in held[worker].items()]


async def fuzz(nursery: NurseryClient, model: Path, root: Path, options: Any) -> Verdict:
    source = random.Random(options.seed)
    began, verdict = time.monotonic(), Verdict()
    oracle = Oracle(model)
    known = [(q, oracle.answer(q)) for q in draw_questions(source, NUM_QUESTIONS)]
    print(f"{len(known)} answers known after {time.monotonic() - began:.0f} s", flush=True)
    left = float(options.seconds)
    for number in itertools.count():
        folder = root / f"round-{number}"
        folder.mkdir()
        config = draw_config(source, str(model))
        engines = {name: pool["engine"] for name, pool in config["pools"].items()}
        print(f"round {number}: {json.dumps({**engines, 'transfer': config['transfer']})}")
        seconds = min(left, ROUND_SECONDS)
        async with fault_fleet(nursery, parse_config(config), model, folder) as fleet:
            own = random.Random(source.random())
            await play_round(fleet, known, own, seconds, verdict)
        if not verdict.passed:
            print(last_words(folder))
        left -= seconds
        if left < 1.0 or not verdict.passed:
            return verdict
    raise AssertionError("unreachable")


async def main_async(options: Any) -> Verdict:
    whole = resolve_model(ModelConfig(), cache_folder())  # pyright: ignore[reportCallIssue]
    with tempfile.TemporaryDirectory(prefix="segue-") as name:
        root = Path(name)
        model = write_shallow_model(whole, root / "model")
        async with open_nursery(root) as nursery:
            return await fuzz(nursery, model, root, options)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    print(f"seed {options.seed}")
    verdict = asyncio.run(main_async(options))
    print(verdict.last_line)
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
