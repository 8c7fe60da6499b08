"""The walkthrough of a long prompt among decodes: its tables, line by line."""

import pytest
from engine_parts import make_scheduler, make_sequence

from segue.workers.scheduler.microbatch import StepBudget
from segue.workers.scheduler.plan import Reason
from segue.workers.scheduler.rehearsal import Iteration, Rehearsal

WHOLE = 4096
Line = tuple[str, int]  # the packed batch, and its tokens

TABLE_A = [
    ("R4 C[0,2048); R1 R2 R3", 2051),
    ("R4 C[2048,4096); R1 R2 R3", 2051),
    ("R4 C[4096,6144); R1 R2 R3", 2051),
    ("R4 C[6144,8192) R5 C[0,20); R2 R3", 2070),
    ("R4 C[8192,9000); R2 R3 R5", 811),
    ("R2 R3 R4 R5", 4),
]


def walk(
    num_iterations: int,
    *,
    policy: str = "guaranteed_no_evict",
    chunking: str = "first_come_first_served",
    cap: int = 2048,
    unit: int | None = None,
    num_blocks: int = 171,
    first_answer: int = 64,
    overlap: bool = False,
) -> list[Iteration]:
    scheduler = make_scheduler(
        num_blocks, 64, max_num_seqs=4, max_tokens=4096, chunk=cap, policy=policy, chunking=chunking
    )
    if unit is not None:
        scheduler.budget = StepBudget(4096, 4096, 64, scheduler.budget.chunking, unit)
    rehearsal = Rehearsal(scheduler, overlap=overlap)
    for name, answer in (("R1", first_answer), ("R2", 128), ("R3", 128)):
        prompt = [int(name[1])] * 512
        assert rehearsal.begin(make_sequence(name, prompt, answer, produced=[0] * 60))
    scheduler.add(make_sequence("R4", [4] * 9000, 64))
    scheduler.add(make_sequence("R5", [5] * 20, 64))
    return [rehearsal.step() for _ in range(num_iterations)]


def lines(iterations: list[Iteration]) -> list[Line]:
    return [(line(iteration), iteration.num_tokens) for iteration in iterations]


def line(iteration: Iteration) -> str:
    chunks = [f"{name} C[{start},{end})" for name, (start, end) in iteration.context.items()]
    return "; ".join(filter(None, (" ".join(chunks), " ".join(iteration.generation))))


@pytest.mark.parametrize("chunking", ["first_come_first_served", "force_chunk"])
def test_table_a_a_hard_cap(chunking: str) -> None:
    done = walk(6, chunking=chunking)
    assert lines(done) == TABLE_A
    assert [it.free_blocks for it in done] == [3, 3, 12, 11, 9, 9]
    assert [it.held for it in done[:3]] == [{"R5": Reason.BATCH_FULL}] * 3
    assert [it.held for it in done[3:]] == [{}] * 3
    assert [it.ended for it in done] == [(), (), ("R1",), (), (), ()]
    assert [it.first_tokens for it in done] == [(), (), (), ("R5",), ("R4",), ()]
    assert not any(it.paused for it in done)


@pytest.mark.parametrize("chunking", ["first_come_first_served", "equal_progress"])
def test_table_b_block_units_without_a_cap(chunking: str) -> None:
    assert lines(walk(5, chunking=chunking, cap=WHOLE)) == [
        ("R4 C[0,4032); R1 R2 R3", 4035),
        ("R4 C[4032,8064); R1 R2 R3", 4035),
        ("R4 C[8064,9000); R1 R2 R3", 939),
        ("R5 C[0,20); R2 R3 R4", 23),
        ("R2 R3 R4 R5", 4),
    ]


def test_table_c_a_unit_is_not_a_cap() -> None:
    assert lines(walk(5, unit=2048)) == [
        ("R4 C[0,2048); R1 R2 R3", 2051),
        ("R4 C[2048,4096); R1 R2 R3", 2051),
        ("R4 C[4096,6144); R1 R2 R3", 2051),
        ("R4 C[6144,9000) R5 C[0,20); R2 R3", 2878),
        ("R2 R3 R4 R5", 4),
    ]


def test_with_overlap_a_slot_comes_back_one_step_later() -> None:
    done = walk(6, overlap=True)
    assert lines(done) == [
        *TABLE_A[:3],
        ("R4 C[6144,8192); R2 R3", 2050),
        ("R4 C[8192,9000) R5 C[0,20); R2 R3", 830),
        ("R2 R3 R4 R5", 4),
    ]
    assert [it.ended for it in done] == [(), (), (), ("R1",), (), ()]
    assert done[2].held == {"R1": Reason.ENDING, "R5": Reason.BATCH_FULL}
    assert done[3].held == {"R5": Reason.BATCH_FULL}
    assert [it.free_blocks for it in done[2:4]] == [3, 12]


@pytest.mark.parametrize(
    ("cap", "fourth"),
    [
        (2048, ("R4 C[0,2048) R5 C[0,20); R2 R3", 2070)),
        (WHOLE, ("R4 C[0,4032) R5 C[0,20); R2 R3", 4054)),
    ],
)
def test_one_block_less_holds_everybody_behind_the_head(cap: int, fourth: Line) -> None:
    done = walk(4, num_blocks=170, cap=cap)
    assert lines(done) == [("R1 R2 R3", 3)] * 3 + [fourth]
    assert done[0].held == {"R4": Reason.NO_BLOCKS, "R5": Reason.BEHIND_HEAD}
    assert ("R4", "no_blocks (141 of 142)") in done[0].news
    assert done[3].held == {}


def test_max_utilization_packs_the_same_when_there_is_room() -> None:
    assert lines(walk(6, policy="max_utilization")) == TABLE_A


def test_max_utilization_admits_on_present_need() -> None:
    done = walk(6, policy="max_utilization", num_blocks=168)
    assert lines(done) == TABLE_A
    assert [it.free_blocks for it in done[:3]] == [0, 0, 9]
    assert not any(it.paused for it in done)


def test_max_utilization_pauses_the_tail_when_a_block_is_missing() -> None:
    """With R1 kept alive all blocks are taken when R1 begins one more in iteration 5."""
    done = walk(6, policy="max_utilization", num_blocks=168, first_answer=128)
    assert lines(done[:4]) == [
        (f"R4 C[{at},{at + 2048}); R1 R2 R3", 2051) for at in (0, 2048, 4096, 6144)
    ]
    assert done[4].paused == ("R4",)
    assert done[4].ran == {"R1", "R2", "R3"}  # R5, behind the paused one, is not looked at
    assert done[4].free_blocks == 168 - 3 * 10
    assert done[5].held.get("R4") is Reason.NO_BLOCKS
