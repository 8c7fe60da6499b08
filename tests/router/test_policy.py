"""The choice of workers: always one that is ready, no herd, and down the ladder by its rungs."""

from dataclasses import replace
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.config.gateway import LadderName, RecoveryConfig
from segue.cluster.config.pool import Role
from segue.cluster.fleet import WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.cluster.worker_status import PairReport, WorkerStatus
from segue.router.policy import LADDERS, Binding, Load, Rung, choose, choose_writer, refusal

ROLES: tuple[Role, ...] = ("prefill", "decode", "both")


def worker(role: Role, number: int = 0) -> WorkerView:
    return WorkerView(WorkerIdentity(f"{role}-{number}", "aa"), role, role, WorkerState.READY)


fleets = st.lists(
    st.tuples(st.sampled_from(ROLES), st.integers(0, 4)), unique=True, max_size=9
).map(lambda pairs: [worker(role, number) for role, number in pairs])


@st.composite
def situations(
    draw: st.DrawFn,
) -> tuple[list[WorkerView], Load, set[WorkerIdentity]]:
    ready = draw(fleets)
    load = Load()
    names = [w.identity for w in ready]
    for identity in names:
        load.context_tokens[identity] = draw(st.integers(0, 3))
        load.answers[identity] = draw(st.integers(0, 3))
    avoid = set(draw(st.lists(st.sampled_from(names), unique=True))) if names else set()
    return ready, load, avoid


@given(situations())
def test_only_ready_workers_are_chosen_and_always_some(
    situation: tuple[list[WorkerView], Load, set[WorkerIdentity]],
) -> None:
    ready, load, avoid = situation
    binding = choose(ready, load, avoid)
    if not ready:
        assert binding is None
        return
    assert binding is not None
    assert all(chosen in ready for chosen in binding.workers)
    if binding.decode is not None:
        assert (binding.prefill.role, binding.decode.role) == ("prefill", "decode")


def refusing(reader: WorkerView, *sources: WorkerView) -> WorkerView:
    """`reader` after failed preflights with `sources`."""
    pairs = tuple(
        PairReport(source.identity, "tcp", "", True, 0.5, 1.0, refusal="not rdma")
        for source in sources
    )
    return replace(reader, status=WorkerStatus(reader.identity, reader.role, pairs=pairs))


def test_a_pair_whose_preflight_failed_is_never_bound() -> None:
    prefill, other_prefill = worker("prefill", 0), worker("prefill", 1)
    decode, other_decode = refusing(worker("decode", 0), prefill), worker("decode", 1)
    first_choice = choose([prefill, decode], Load())
    assert first_choice is not None and first_choice.rung is Rung.PREFILL_ON_DECODE
    for more in (other_prefill, other_decode):
        binding = choose([prefill, decode, more], Load())
        assert binding is not None and binding.rung is Rung.DISAGGREGATED
        assert binding.workers in ((other_prefill, decode), (prefill, other_decode))


@given(situations(), st.data())
def test_refusals_part_pairs_and_nothing_else(
    situation: tuple[list[WorkerView], Load, set[WorkerIdentity]], data: st.DataObject
) -> None:
    workers, load, _ = situation
    sources = [w for w in workers if w.role == "prefill"]
    ready = [
        refusing(w, *(s for s in sources if data.draw(st.booleans()))) if w.role == "decode" else w
        for w in workers
    ]
    binding = choose(ready, load)
    assert (binding is None) == (not ready)
    if binding is not None and binding.decode is not None and binding.decode.status is not None:
        assert binding.prefill.identity not in binding.decode.status.refused_sources


@given(situations())
def test_who_is_to_be_avoided_is_the_last_resort(
    situation: tuple[list[WorkerView], Load, set[WorkerIdentity]],
) -> None:
    ready, load, avoid = situation
    binding = choose(ready, load, avoid)
    if binding is not None and any(w.identity not in avoid for w in ready):
        assert not [w for w in binding.workers if w.identity in avoid]


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_in_which_workers_are_listed_does_not_matter(
    situation: tuple[list[WorkerView], Load, set[WorkerIdentity]], random: Random
) -> None:
    ready, load, avoid = situation
    shuffled = list(ready)
    random.shuffle(shuffled)
    assert choose(ready, load, avoid) == choose(shuffled, load, avoid)


@given(st.sampled_from(ROLES), st.integers(1, 6), st.integers(1, 40), st.integers(1, 500))
def test_equal_workers_are_chosen_equally_often(
    role: Role, count: int, choices: int, tokens: int
) -> None:
    """Each choice reserves at once, so a burst on one stale view makes no herd."""
    ready = [worker(role, number) for number in range(count)]
    load = Load()
    taken = dict.fromkeys((w.identity for w in ready), 0)
    for _ in range(choices):
        binding = choose(ready, load)
        assert binding is not None
        load.begin(binding, tokens)
        taken[binding.prefill.identity] += 1
    assert max(taken.values()) - min(taken.values()) <= 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 30))
def test_both_halves_of_pairs_are_spread(prefills: int, decodes: int, choices: int) -> None:
    ready = [worker("prefill", i) for i in range(prefills)]
    ready += [worker("decode", i) for i in range(decodes)]
    load, bindings = Load(), []
    for _ in range(choices):
        binding = choose(ready, load)
        assert binding is not None and binding.decode is not None
        load.begin(binding, 10)
        bindings.append(binding)
    for role in ("prefill", "decode"):
        counts = [
            sum(w in binding.workers for binding in bindings) for w in ready if w.role == role
        ]
        assert max(counts) - min(counts) <= 1
    for binding in bindings:
        load.end_context(binding, 10)
        load.end_answer(binding)
    assert not load.context_tokens and not load.answers  # nothing is kept of who is gone


def test_the_ladder() -> None:
    prefill, decode, both = worker("prefill"), worker("decode"), worker("both")

    def rung(*ready: WorkerView, avoid: tuple[WorkerView, ...] = ()) -> Rung | None:
        binding = choose(ready, Load(), [w.identity for w in avoid])
        return None if binding is None else binding.rung

    assert rung(prefill, decode) is Rung.DISAGGREGATED
    assert rung(prefill, decode, both) is Rung.DISAGGREGATED
    assert rung(prefill, both) is Rung.COLOCATED
    assert rung(decode) is Rung.PREFILL_ON_DECODE
    assert rung(prefill) is Rung.DECODE_ON_PREFILL
    assert rung() is None
    assert rung(prefill, decode, avoid=(prefill,)) is Rung.PREFILL_ON_DECODE
    assert rung(prefill, decode, avoid=(decode,)) is Rung.DECODE_ON_PREFILL
    assert rung(prefill, decode, both, avoid=(decode,)) is Rung.COLOCATED
    assert rung(prefill, decode, avoid=(prefill, decode)) is Rung.DISAGGREGATED


def test_every_configurable_ladder_exists() -> None:
    assert set(get_args(LadderName)) == set(LADDERS)
    assert RecoveryConfig().ladder == "full"


@pytest.mark.parametrize(
    ("ladder", "alone_with_decode", "alone_with_prefill"),
    [
        ("full", Rung.PREFILL_ON_DECODE, Rung.DECODE_ON_PREFILL),
        ("no_local_prefill", None, Rung.DECODE_ON_PREFILL),
        ("no_local_decode", Rung.PREFILL_ON_DECODE, None),
        ("pairs_only", None, None),
    ],
)
def test_a_named_ladder_lacks_rungs(
    ladder: LadderName, alone_with_decode: Rung | None, alone_with_prefill: Rung | None
) -> None:
    prefill, decode = worker("prefill"), worker("decode")
    found = [choose([w], Load(), (), ladder) for w in (decode, prefill)]
    rungs = [binding.rung if binding else None for binding in found]
    assert rungs == [alone_with_decode, alone_with_prefill]
    # Rather than standing in, they are tried once more where they failed.
    avoid = [prefill.identity]
    binding = choose([prefill, decode], Load(), avoid, ladder)
    assert binding is not None
    assert binding.rung is (alone_with_decode or Rung.DISAGGREGATED)


@given(situations(), st.sampled_from(sorted(LADDERS)))
def test_no_ladder_is_left_by_a_step_that_it_lacks(
    situation: tuple[list[WorkerView], Load, set[WorkerIdentity]], ladder: LadderName
) -> None:
    ready, load, avoid = situation
    binding = choose(ready, load, avoid, ladder)
    always = {Rung.DISAGGREGATED, Rung.COLOCATED}
    assert binding is None or binding.rung in always | LADDERS[ladder]
    roles = {w.role for w in ready}
    if "both" in roles or {"prefill", "decode"} <= roles:
        assert binding is not None


def test_a_refusal_says_what_is_missing_and_which_policy_refuses() -> None:
    assert refusal([], "full") == "no worker is ready to serve this model"
    alone = refusal([worker("prefill")], "no_local_decode")
    assert alone.startswith("no decode worker is ready") and "no_local_decode" in alone
    decode = refusing(worker("decode"), worker("prefill"))
    apart = refusal([worker("prefill"), decode], "pairs_only")
    assert apart.startswith("no two workers can exchange KV") and "pairs_only" in apart


def test_another_prefill_worker_comes_before_local_prefill() -> None:
    ready = [worker("prefill", 0), worker("prefill", 1), worker("decode")]
    binding = choose(ready, Load(), [ready[0].identity])
    assert binding is not None and binding.workers == (ready[1], ready[2])


def test_a_colocated_worker_competes_by_load() -> None:
    prefill, decode, both = worker("prefill"), worker("decode"), worker("both")
    load = Load()
    load.answers[decode.identity] = 2
    binding = choose([prefill, decode, both], load)
    assert binding is not None and binding.rung is Rung.COLOCATED


def test_an_answer_moves_to_who_writes_the_fewest_and_can_read_it() -> None:
    source, prefill = worker("decode", 0), worker("prefill")
    load = Load()
    load.answers[WorkerIdentity("decode-1", "aa")] = 1
    pair = PairReport(source.identity, "tcp", "", False, None, 0.0, "not rdma")
    apart = replace(
        worker("decode", 2), status=WorkerStatus(source.identity, "decode", pairs=(pair,))
    )
    others = [worker("decode", 1), apart]
    assert choose_writer([source, prefill, *others], load, source) is others[0]
    assert choose_writer([source, prefill, *others, worker("both")], load, source) == worker("both")
    assert choose_writer([source, prefill, apart], load, source) is None


def test_the_first_token_is_drawn_where_the_prompt_was_read() -> None:
    reader, writer = worker("prefill"), worker("decode")
    apart = Binding(reader, writer, Rung.DISAGGREGATED)
    assert (apart.drawer(first=True), apart.drawer(first=False)) == (reader, writer)
    alone = Binding(writer, None, Rung.PREFILL_ON_DECODE)
    assert alone.drawer(first=True) is alone.drawer(first=False) is writer


@given(situations(), st.data(), st.sampled_from(get_args(LadderName)))
def test_whom_only_the_controller_does_not_hear_is_better_than_a_worse_rung(
    situation: tuple[list[WorkerView], Load, set[WorkerIdentity]],
    data: st.DataObject,
    ladder: LadderName,
) -> None:
    everybody, load, _ = situation
    heard = [w for w in everybody if data.draw(st.booleans())]
    doubted = [w if w in heard else replace(w, state=WorkerState.SUSPECT) for w in everybody]
    binding = choose(doubted, load, (), ladder)
    of_heard = choose(heard, load, (), ladder)
    best = choose(everybody, load, (), ladder)
    full = (Rung.DISAGGREGATED, Rung.COLOCATED)
    if of_heard is not None and of_heard.rung in full:
        assert binding == of_heard  # nobody who is doubted
    elif best is not None and best.rung in full:
        assert binding is not None and binding.rung in full and not binding.is_heard
        for chosen in binding.workers:  # no more of them than it takes
            same = [w for w in heard if w.role == chosen.role]
            assert chosen.state is WorkerState.READY or not same
    elif of_heard is not None:
        assert binding == of_heard
    else:
        assert (binding is None) == (best is None)
