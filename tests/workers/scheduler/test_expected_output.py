"""What is expected of answers: never more than their limit, and what the latest ones teach."""

from engine_parts import PEER, make_scheduler, make_sequence
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.worker_status import UsualAnswer
from segue.workers.scheduler.expected_output import FEWEST, WINDOW, FixedOutput, LearnedOutput

answers = st.tuples(st.integers(1, 300), st.integers(0, 300)).map(lambda x: (x[0], x[0] + x[1]))


@given(st.lists(answers, max_size=2 * FEWEST), st.integers(1, 10_000), st.integers(1, 500))
def test_an_expectation_is_at_least_a_token_and_at_most_the_limit(
    ended: list[tuple[int, int]], limit: int, number: int
) -> None:
    learned = LearnedOutput()
    for length, max_tokens in ended:
        learned.note(length, max_tokens)
    assert 1 <= learned.tokens(limit) <= limit
    assert 1 <= FixedOutput(number).tokens(limit) == min(number, limit)
    if len(ended) < FEWEST:
        assert learned.tokens(limit) == limit  # pessimistic until it knows enough


@given(st.lists(answers, min_size=FEWEST, max_size=3 * FEWEST))
def test_nine_in_ten_of_the_answers_stay_within_what_they_taught(
    ended: list[tuple[int, int]],
) -> None:
    learned = LearnedOutput()
    for length, max_tokens in ended:
        learned.note(length, max_tokens)
    within = sum(length <= learned.tokens(max_tokens) for length, max_tokens in ended)
    assert within >= 0.9 * len(ended)


def test_answers_cut_off_at_a_low_limit_are_not_taken_for_short_ones() -> None:
    learned = LearnedOutput()
    for _ in range(FEWEST):
        learned.note(16, 16)
    assert learned.tokens(2048) == 2048
    for _ in range(WINDOW):
        learned.note(100, 4096)
    assert learned.tokens(4096) == 100 and learned.tokens(16) == 16


def test_what_was_heard_is_believed_until_answers_have_taught_enough() -> None:
    heard = UsualAnswer(100, 0.25)
    learned = LearnedOutput(heard)
    assert learned.usual == 100 and learned.learned is None
    assert [learned.tokens(limit) for limit in (4, 200, 4000)] == [4, 100, 1000]
    for _ in range(FEWEST - 1):
        learned.note(2, 1000)
    assert learned.tokens(200) == 100 and learned.learned is None, "what was heard is no news"
    learned.note(2, 1000)
    assert learned.learned == UsualAnswer(2, 0.002) and learned.tokens(200) == 2


@given(st.lists(answers, max_size=60))
def test_only_the_latest_answers_count_and_memory_is_bounded(
    earlier: list[tuple[int, int]],
) -> None:
    learned, fresh = LearnedOutput(), LearnedOutput()
    for length, max_tokens in earlier:
        learned.note(length, max_tokens)
    for at in range(WINDOW):
        learned.note(1 + at % 50, 50 + at % 7)
        fresh.note(1 + at % 50, 50 + at % 7)
    assert len(learned) == WINDOW
    assert [learned.tokens(n) for n in range(1, 99)] == [fresh.tokens(n) for n in range(1, 99)]


def test_a_promise_covers_what_is_expected_and_all_once_that_was_wrong() -> None:
    scheduler = make_scheduler(expected_output=10)
    policy, cache = scheduler.settings.policy, scheduler.cache

    def promised(**more: object) -> int:
        sequence = make_sequence("a", [1, 2, 3], 40, **more)  # type: ignore[arg-type]
        return policy.tokens_to_promise(sequence, cache)

    assert promised() == promised(source=PEER) == promised(produced=[4] * 9) == 3 + 10
    assert promised(produced=[4] * 10) == 3 + 40
    assert promised(decode_peer=PEER) == 3  # a prefill worker keeps the context only
    paused = make_sequence("a", [1, 2, 3], 40)
    paused.num_pauses = 1
    assert policy.tokens_to_promise(paused, cache) == 3 + 40
