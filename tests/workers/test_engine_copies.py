"""The engine over a KV-cache that copies blocks: right answers, and a way out when a copy fails."""

import random
import threading
from collections.abc import Iterator, Sequence

import pytest
from engine_parts import (
    PEER,
    FakeRunner,
    expected_tokens,
    make_engine,
    make_scheduler,
    make_sequence,
)

from segue.cluster.errors import FailureKind
from segue.workers.engine import Engine
from segue.workers.kvcache.block_operations import (
    BlockOperation,
    CopyBlock,
    OffloadBlock,
    OnboardBlock,
)
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.sequence import Sequence as TokenSequence
from segue.workers.step_outcome import Ended, StepOutcome

NUM_BLOCKS, NUM_SLOTS = 12, 10


class CopyingRunner(FakeRunner):
    """Remembers what was copied; `broken` copies raise."""

    def __init__(self) -> None:
        super().__init__(NUM_BLOCKS, 4, NUM_SLOTS)
        self.kinds: set[type[BlockOperation]] = set()
        self.broken = False

    def copy_blocks(self, operations: Sequence[BlockOperation]) -> None:
        if self.broken:
            raise RuntimeError("the device is gone")
        self.kinds.update(type(operation) for operation in operations)
        super().copy_blocks(operations)


class Bench:
    def __init__(self, policy: str) -> None:
        self.runner = CopyingRunner()
        self.ended: dict[str, Ended] = {}
        self.heard = threading.Condition()
        reuse = ReusePolicy(num_host_slots=NUM_SLOTS, event_capacity=8)
        scheduler = make_scheduler(NUM_BLOCKS, 4, reuse=reuse, policy=policy)
        self.engine: Engine = make_engine(scheduler, self.runner, self.hear)
        self.engine.start()

    def hear(self, outcome: StepOutcome) -> None:
        with self.heard:
            for ended in outcome.ended:
                self.ended[ended.sequence.request.request_id] = ended
            self.heard.notify_all()

    def add(self, sequence: TokenSequence) -> None:
        self.engine.call(lambda: self.engine.add(sequence)).result(5)

    def check(self) -> None:
        cache, scheduler = self.engine.cache, self.engine.scheduler
        self.engine.call(lambda: cache.check_integrity(scheduler.sequences())).result(5)

    def wait_for(self, *names: str) -> None:
        with self.heard:
            assert self.heard.wait_for(lambda: self.ended.keys() >= set(names), 30.0)

    def answer(self, sequence: TokenSequence) -> list[int]:
        self.wait_for(sequence.request.request_id)
        return sequence.tokens[sequence.request.num_prompt_tokens :]


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    yield bench
    bench.engine.stop()
    assert not bench.engine.is_alive


@pytest.mark.parametrize("bench", ["guaranteed_no_evict", "max_utilization"], indirect=True)
def test_answers_are_right_whatever_is_copied(bench: Bench) -> None:
    """Prompts that begin alike meet a cache that is too small for them, again and again."""
    draw = random.Random(3)
    wanted: list[tuple[TokenSequence, list[int]]] = []
    for number in range(60):
        family = [draw.randrange(3)] * draw.randrange(1, 14)
        prompt = family + [draw.randrange(50) for _ in range(draw.randrange(1, 6))]
        count = draw.randrange(1, 16)
        sequence = make_sequence(str(number), prompt, count)
        wanted.append((sequence, expected_tokens(prompt, count)))
        bench.add(sequence)
        bench.check()
        if number % 8 == 7:
            bench.wait_for(*(str(n) for n in range(number - 4)))
    for sequence, tokens in wanted:
        assert bench.answer(sequence) == tokens
        bench.check()
    assert bench.runner.kinds == {CopyBlock, OffloadBlock, OnboardBlock}


@pytest.mark.parametrize("bench", ["guaranteed_no_evict"], indirect=True)
def test_a_copy_that_fails_ends_its_sequences_and_nobody_is_served_from_the_cache(
    bench: Bench,
) -> None:
    bench.add(make_sequence("first", range(10), 1))
    bench.wait_for("first")
    bench.runner.broken = True
    bench.add(make_sequence("second", [*range(7), 50], 3))  # a part is to be copied
    bench.wait_for("second")
    failure = bench.ended["second"].failure
    assert failure is not None and failure.kind is FailureKind.COMPUTE
    bench.check()
    assert bench.engine.cache.pool.generation == 2
    bench.runner.broken = False
    third = make_sequence("third", [*range(7), 50], 3)
    bench.add(third)
    assert bench.answer(third) == expected_tokens([*range(7), 50], 3)
    assert third.num_cached == 0


def test_a_landing_that_grows_is_told_of_blocks_that_nothing_reads_any_more() -> None:
    """An answer that moves here writes on, and a peer writes into what is added the moment it is
    told. What was cached in those blocks is on its way to the host tier."""
    runner = FakeRunner(4, 4, 4)
    engine = make_engine(
        make_scheduler(4, 4, reuse=ReusePolicy(num_host_slots=4), expected_output=1),
        runner,
        lambda outcome: None,
    )
    engine.add(make_sequence("prefix", range(1, 13), 2))
    for _ in range(6):
        engine.run_once()
    moving = make_sequence("moving", [50] * 4, 8, source=PEER)
    engine.add(moving)
    engine.run_once()
    before = [list(slots) for slots in runner.slots]
    held = len(moving.block_ids)
    grown = engine.call(lambda: engine.cache.extend_landing(moving, 3))
    written = []

    def write(_: object) -> None:
        for block_id in moving.block_ids[held:]:
            written.append(list(before[block_id]))
            runner.slots[block_id] = [99] * 4  # a peer's bytes

    grown.add_done_callback(write)
    engine.run_once()
    assert grown.result(0) and len(written) == 2
    tier = [slots for slots in runner.host if slots is not None]
    assert [99] * 4 not in tier
    assert all(slots in tier for slots in written)  # what was there before is what was saved


def test_a_call_is_answered_though_its_copies_fail() -> None:
    engine = make_engine(make_scheduler(4, 4), runner := CopyingRunner(), lambda outcome: None)
    runner.broken = True

    def order() -> str:
        engine.cache._content.copies.offload(0, 0)
        return "done"

    answer = engine.call(order)
    engine.run_once()
    assert answer.result(0) == "done" and engine.counters.failed_steps == 1
