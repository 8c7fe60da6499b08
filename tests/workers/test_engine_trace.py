"""What an engine remembers of its steps: those that compute, and those that only decide."""

from engine_parts import PEER, FakeRunner, make_engine, make_scheduler, make_sequence

from segue.cluster.step_trace import StepReason, StepRecord
from segue.workers.engine import Engine
from segue.workers.plan_recorder import PlanRecorder


def engine_of(num_blocks: int, runner: FakeRunner | None = None) -> Engine:
    scheduler = make_scheduler(num_blocks)
    runner = runner or FakeRunner(num_blocks, 4)
    return make_engine(scheduler, runner, lambda outcome: None, PlanRecorder(8))


def reasons(steps: tuple[StepRecord, ...]) -> list[list[StepReason]]:
    return [list(step.reasons) for step in steps]


def test_why_a_prompt_waits_is_remembered_though_nothing_runs() -> None:
    engine = engine_of(8)
    sequence = make_sequence("r", range(5), 1, decode_peer=PEER)
    for _ in range(3):
        engine.run_once()
    assert engine.recorder.last(8) == (), "nothing was computed or decided"
    engine.expect(sequence.attempt)
    for _ in range(20):
        engine.run_once()
    (waits,) = engine.recorder.last(8)
    assert waits.reasons == (StepReason("r#1", "waiting_for_credit"),)
    assert not waits.computes and waits.began == waits.ended and waits.free_blocks == 8
    engine.add(sequence)
    engine.run_once()
    _, ran = engine.recorder.last(8)
    assert ran.computes and ran.reasons == (StepReason("r#1", "admitted"),)


def test_who_waits_for_blocks_is_told_once() -> None:
    """The first one's KV is on its way, so nothing runs; for the second one there is no room."""
    engine = engine_of(4)
    for name in ("a", "b"):
        engine.add(make_sequence(name, range(9), 4, source=PEER))
    for _ in range(50):
        engine.run_once()
    told = reasons(engine.recorder.last(8))
    assert told == [
        [
            StepReason("a#1", "admitted"),
            StepReason("a#1", "waiting_for_kv"),
            StepReason("b#1", "no_blocks"),
        ]
    ]
    assert engine.counters.steps == 0


def test_a_step_that_fails_is_remembered_too() -> None:
    class Broken(FakeRunner):
        def execute(self, batch: object) -> object:  # type: ignore[override]
            raise MemoryError

    engine = engine_of(8, Broken(8, 4))
    engine.add(make_sequence("r", range(5), 2))
    engine.run_once()
    (failed,) = engine.recorder.last(8)
    assert [work.attempt for work in failed.context] == ["r#1"]
    assert engine.recorder.unfinished is None
