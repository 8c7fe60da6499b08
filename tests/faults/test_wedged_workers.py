"""A worker beats but its engine never comes back from a step: it is named, unrouted, replaced.

The request that it was at work on gets the text of an undisturbed run.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest
from local_fleet import Answer, LocalFleet, local_fleet
from process_footprint import Slack, measure, shrunk
from wedging_worker import ENTRY, FOLDER_VARIABLE

from segue.cluster.config.file import parse_config
from segue.cluster.fleet import DeathCause, FleetView, WorkerView
from segue.router.fleet import Front, readiness

PAIRS_ONLY = Front(ladder="pairs_only")
PROMPT = [random.Random(8).randrange(20, 49_000) for _ in range(150)]
NUM_TOKENS = 12
STALLED_AFTER_S = 3.0
WEDGED_AFTER_S = 6.0
ENGINE = {"enable_prefix_caching": False, "chunk_size": 64, "num_kv_blocks": 128}
CONFIG = {
    "pools": {
        "prefill": {"role": "prefill", "engine": ENGINE},
        "decode": {"role": "decode", "engine": ENGINE},
    },
    "control": {"stalled_after_s": STALLED_AFTER_S, "wedged_after_s": WEDGED_AFTER_S},
    "gateway": {"recovery": {"worker_wait_s": 60}, "admission": {"request_timeout_s": 90}},
}


def life(view: FleetView, role: str) -> WorkerView:
    return next(worker for worker in view.workers if worker.role == role)


async def wedge(fleet: LocalFleet, folder: Path, role: str) -> Answer:
    """Ask; the worker of that role is wedged before the prompt, or in the midst of the answer."""
    at = 0 if role == "prefill" else 4

    def on_token(answer: Answer) -> None:
        if len(answer.tokens) == at:
            (folder / role).touch()

    if not at:
        (folder / role).touch()
    answer = await fleet.ask(PROMPT, NUM_TOKENS, on_token=on_token)
    assert not (folder / role).exists(), "nobody was wedged"
    return answer


async def test_a_wedged_worker_is_named_and_replaced(
    bundled_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = Path(__file__).parents[1] / "support"
    monkeypatch.setenv("PYTHONPATH", str(support), prepend=os.pathsep)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    async with local_fleet(parse_config(CONFIG), bundled_model, worker_entry=ENTRY) as fleet:
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            undisturbed = await fleet.ask(PROMPT, NUM_TOKENS)
            victim, survivor = fleet.worker(role), fleet.worker(other)
            before = {pid: measure(pid) for pid in (survivor.pid, os.getpid())}
            asking = asyncio.create_task(wedge(fleet, tmp_path, role))
            await fleet.watcher.wait_until(
                lambda view: not readiness(view, 0.0, front=PAIRS_ONLY).ready, 40
            )
            told = readiness(fleet.watcher.view, 0.0, front=PAIRS_ONLY).reason
            assert f"no {role} worker is ready" in told and f"{role}-0 suspect: stalled" in told
            assert "the engine thread has not moved" in told and "its step began" in told
            assert (await asking).tokens == undisturbed.tokens
            await fleet.ready(2)
            heir = life(fleet.watcher.view, role)
            assert heir.identity != victim.identity and heir.pid != victim.pid
            assert heir.restarts == 1 and heir.deaths == {DeathCause.WEDGED: 1}
            assert heir.last_end.startswith("wedged: the engine thread has not moved for ")
            assert "called by segue.workers.step_execution." in heir.last_end
            with pytest.raises(ProcessLookupError):
                os.kill(victim.pid, 0)
            await fleet.settled()
            for pid, footprint in before.items():
                await shrunk(pid, footprint, Slack(threads=4))
