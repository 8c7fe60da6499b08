"""The engine around a real, small model: company, chunks and pauses change no token."""

from pathlib import Path

import pytest
from engine_parts import make_scheduler, make_sequence
from tiny_model import write_tiny_llama

from segue.workers.engine import Engine
from segue.workers.model_runner import ModelRunner
from segue.workers.step_execution import StepExecution
from segue.workers.step_outcome import StepOutcome

PROMPTS = {
    f"r{n}": [(n * 11 + at * at) % 64 for at in range(length)]
    for n, length in enumerate((3, 9, 17, 4, 8, 30))
}
ANSWER = 21


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return write_tiny_llama(path)


def answers(
    folder: Path,
    names: list[str],
    num_blocks: int,
    policy: str,
    kv_cache_dtype: str = "auto",
    expected_output: str | int = "full",
) -> tuple[dict[str, list[int]], int]:
    """What each request is told, and how often one was paused."""
    runner = ModelRunner(
        folder,
        load_format="dummy",
        dtype="float32",
        device="cpu",
        num_blocks=num_blocks,
        block_size=4,
        kv_cache_dtype=kv_cache_dtype,
    )
    told: dict[str, list[int]] = {name: [] for name in names}

    def hear(outcome: StepOutcome) -> None:
        for _, delta in outcome.deltas():
            told[delta.attempt.request_id] += delta.token_ids

    scheduler = make_scheduler(
        num_blocks, max_num_seqs=8, chunk=8, policy=policy, expected_output=expected_output
    )
    engine = Engine(scheduler, StepExecution(runner, None), hear)
    for name in names:
        engine.add(make_sequence(name, PROMPTS[name], ANSWER))
    for _ in range(400):
        if not engine.num_sequences:
            break
        engine.run_once()
        engine.cache.check_integrity(scheduler.sequences())
    return told, engine.counters.pauses


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_alone_in_company_and_paused_say_the_same(folder: Path, kv_cache_dtype: str) -> None:
    alone = {
        name: answers(folder, [name], 40, "guaranteed_no_evict", kv_cache_dtype)[0][name]
        for name in PROMPTS
    }
    assert all(len(tokens) == ANSWER for tokens in alone.values())
    assert len({tuple(tokens) for tokens in alone.values()}) > 3, "the model says something"
    company, none = answers(folder, list(PROMPTS), 100, "guaranteed_no_evict", kv_cache_dtype)
    assert company == alone and none == 0
    paused, pauses = answers(folder, list(PROMPTS), 20, "max_utilization", kv_cache_dtype)
    assert pauses > 0
    assert paused == alone
    outgrown, pauses = answers(
        folder, list(PROMPTS), 20, "guaranteed_no_evict", kv_cache_dtype, expected_output=3
    )
    assert pauses > 0
    assert outgrown == alone
