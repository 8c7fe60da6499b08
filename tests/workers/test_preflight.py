"""Two workers that meet: the pattern, what the pair is refused for, and who is asked instead."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from worker_pair import BLOCK_SIZE, PROBE_BYTES, Node, NodeKind, Pair, worker_pair

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import AttemptFailed, FailureKind
from segue.cluster.fleet import Sources
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.worker_status import PairReport
from segue.kvtransfer.loopback_transport import Faults
from segue.kvtransfer.medium import Medium, MediumKind
from segue.kvtransfer.preflight import TIMED_READS
from segue.kvtransfer.probe_area import NUM_SLOTS
from segue.kvtransfer.receiver import Receiver

PROMPT = range(3 * BLOCK_SIZE + 1)
QUICK = TransferConfig(transport="loopback", read_timeout_s=1.0, preflight_timeout_s=0.2)


@pytest_asyncio.fixture
async def strangers() -> AsyncIterator[Pair]:
    async with worker_pair(QUICK, max_attempts=3, introduced=False) as started:
        yield started


def reports(node: Node) -> tuple[PairReport, ...]:
    return node.service.status_now().pairs


async def meet(pair: Pair) -> PairReport:
    await pair.decode.service.parts.peers.connect(pair.prefill.peer, pair.decode.receiver)
    (report,) = reports(pair.decode)
    return report


async def refused(pair: Pair) -> AttemptFailed:
    with pytest.raises(AttemptFailed) as refusal:
        await meet(pair)
    assert refusal.value.failure is FailureKind.PREFLIGHT
    assert str(pair.prefill.identity) in refusal.value.message
    assert str(pair.decode.identity) in refusal.value.message
    return refusal.value


async def test_a_good_pair_is_measured_and_no_block_is_touched(strangers: Pair) -> None:
    before = strangers.decode.runner.memory.copy(), strangers.prefill.runner.memory.copy()
    report = await meet(strangers)
    assert (report.source, report.transport) == (strangers.prefill.identity, "loopback")
    assert report.is_measured and not report.is_refused
    assert report.gigabytes_per_second is not None and report.gigabytes_per_second > 0
    receiver = strangers.decode.receiver
    assert receiver.transport.bytes_read == (1 + TIMED_READS) * PROBE_BYTES
    assert strangers.decode.service.status_now().counters["kv_bytes_read"] == 0
    after = strangers.decode.runner.memory, strangers.prefill.runner.memory
    assert all((old == new).all() for old, new in zip(before, after, strict=True))
    assert strangers.decode.service.beat().pairs == ()  # heartbeats tell of trouble only


@pytest.mark.parametrize(
    ("faults", "problem"),
    [
        (Faults(corrupt=True), "not those of the pattern"),
        (Faults(fail=True), "read of the pattern failed"),
        (Faults(delay_seconds=0.5), "did not arrive in time"),
    ],
    ids=["corrupt", "failed", "late"],
)
async def test_a_bad_pair_is_refused_and_tried_again_later(
    strangers: Pair, faults: Faults, problem: str
) -> None:
    strangers.fabric.set_faults(faults)
    assert problem in (await refused(strangers)).message
    receiver, incarnation = strangers.decode.receiver, strangers.prefill.identity.incarnation
    await strangers.until(lambda: not receiver.is_connected(incarnation))
    (report,) = strangers.decode.service.beat().pairs
    assert problem in report.refusal and report.gigabytes_per_second is None
    strangers.fabric.set_faults(Faults())
    assert "tried again in" in (await refused(strangers)).message  # not at once
    await strangers.until(lambda: reports(strangers.decode)[0].retry_seconds == 0)
    assert not (await meet(strangers)).is_refused
    answer = await strangers.ask(PROMPT, 4)
    assert len(answer.tokens) == 4
    assert strangers.journeys.counters.rungs == {"disaggregated": 1}


class SlowToDisconnect(Receiver):
    """Its thread has not got to it yet."""

    def disconnect(self, peer: str) -> None:
        pass


async def test_a_bad_pair_is_refused_before_it_is_disconnected() -> None:
    kind = NodeKind(receiver=SlowToDisconnect)
    async with worker_pair(QUICK, decode_kind=kind, introduced=False) as pair:
        pair.fabric.set_faults(Faults(corrupt=True))
        await refused(pair)
        assert pair.decode.receiver.is_connected(pair.prefill.identity.incarnation)
        assert "tried again in" in (await refused(pair)).message


async def test_a_transport_that_is_not_allowed_is_never_used() -> None:
    transfer = QUICK.model_copy(update={"require_transport": "rdma"})
    async with worker_pair(transfer, max_attempts=3, introduced=False) as pair:
        pair.fabric.medium = Medium(MediumKind.TCP, "tcp/eth0", measured=True)
        message = (await refused(pair)).message
        assert "require_transport is rdma" in message and "tcp (tcp/eth0)" in message
        (report,) = reports(pair.decode)
        assert report.is_refused and report.transport == "tcp"
        assert report.gigabytes_per_second is not None  # it moves bytes, but not as it should
        kv_before = pair.decode.service.status_now().counters["kv_bytes_read"]
        answer = await pair.ask(PROMPT, 4)  # the prefill worker goes on alone
        assert len(answer.tokens) == 4
        counters = pair.journeys.counters
        assert counters.failures == {"preflight": 1}
        assert counters.rungs == {"disaggregated": 1, "decode_on_prefill": 1}
        assert pair.decode.service.status_now().counters["kv_bytes_read"] == kv_before
        await pair.settled()


async def test_a_transport_as_required_is_accepted() -> None:
    transfer = QUICK.model_copy(update={"require_transport": "shm"})
    async with worker_pair(transfer, introduced=False) as pair:
        pair.fabric.medium = Medium(MediumKind.SHM, "cma/memory")
        report = await meet(pair)
        assert report.detail == "cma/memory" and not report.is_measured and not report.is_refused


async def test_an_unknown_transport_meets_no_requirement() -> None:
    transfer = QUICK.model_copy(update={"require_transport": "shm"})
    async with worker_pair(transfer, introduced=False) as pair:
        pair.fabric.medium = Medium(MediumKind.UNKNOWN)
        assert "over unknown" in (await refused(pair)).message


async def test_a_new_life_is_probed_anew(strangers: Pair) -> None:
    first = await meet(strangers)
    await strangers.prefill.stop()
    strangers.prefill = await strangers.replace(strangers.prefill)
    second = await meet(strangers)
    assert first.source.worker_id == second.source.worker_id
    assert first.source != second.source == strangers.prefill.identity


async def test_workers_meet_before_the_first_request(strangers: Pair) -> None:
    """The controller's word is enough, and is said with every beat."""
    sources = Sources((strangers.prefill.peer,))
    for _ in range(3):
        strangers.decode.service.on_sources(sources)
    await strangers.until(lambda: reports(strangers.decode))
    assert not reports(strangers.decode)[0].is_refused
    strangers.decode.service.on_sources(sources)
    await asyncio.sleep(0.05)
    assert strangers.decode.receiver.transport.bytes_read == (1 + TIMED_READS) * PROBE_BYTES


async def test_writers_meet_one_at_a_time_and_after_those_that_read_prompts(
    strangers: Pair,
) -> None:
    """So a first move between two decode workers pays for nothing, and none is besieged."""
    reader = strangers.decode
    writers = [await strangers.another("decode", f"decode-{n}") for n in (1, 2, 3)]
    sources = Sources((strangers.prefill.peer,), tuple(node.peer for node in writers))
    reader.service.on_sources(sources)
    met = [set[str]()]

    def beat() -> bool:
        reader.service.on_sources(sources)
        now = {pair.source.worker_id for pair in reports(reader)}
        if now != met[-1]:
            met.append(now)
        return len(now) == 4

    await strangers.until(beat)
    assert [len(names) for names in met] == [0, 1, 2, 3, 4], "one after the other"
    assert met[1] == {"prefill-0"}
    assert not any(pair.is_refused for pair in reports(reader))
    before = reader.receiver.transport.bytes_read
    for _ in range(5):
        beat()
    await asyncio.sleep(0.2)
    assert reader.receiver.transport.bytes_read == before, "nobody is met twice"


async def test_a_writer_that_cannot_be_met_keeps_no_other_waiting(strangers: Pair) -> None:
    reader = strangers.decode
    other = await strangers.another("decode", "decode-2")
    nowhere = Peer(WorkerIdentity("decode-1", "gone"), "127.0.0.1:1")
    sources = Sources(of_answers=(nowhere, other.peer))

    def beat() -> bool:
        reader.service.on_sources(sources)
        return bool(reports(reader))

    await strangers.until(beat)
    assert reports(reader)[0].source == other.identity


async def test_a_refused_pair_is_met_again_without_a_request(strangers: Pair) -> None:
    strangers.fabric.set_faults(Faults(corrupt=True))
    await refused(strangers)
    strangers.fabric.set_faults(Faults())

    def beat() -> bool:
        strangers.decode.service.on_sources(Sources((strangers.prefill.peer,)))
        return not reports(strangers.decode)[0].is_refused

    await strangers.until(beat)


async def hang_all_slots(pair: Pair) -> None:
    """By reads of a source that was met, which is then as it was before."""
    receiver, incarnation = pair.decode.receiver, pair.prefill.identity.incarnation
    await meet(pair)
    pair.fabric.set_faults(Faults(drop=True))
    hanging = [receiver.probe(incarnation, b"x" * 64, 0.05) for _ in range(NUM_SLOTS)]
    for probe in hanging:
        with pytest.raises(Exception, match="in time"):
            await asyncio.wrap_future(probe.result)
    pair.fabric.set_faults(Faults())


async def test_who_waits_for_a_slot_in_vain_is_busy_and_no_bad_pair(strangers: Pair) -> None:
    """Those that hang keep their slots until their reads have ended."""
    await hang_all_slots(strangers)
    other = await strangers.another("prefill", "prefill-1")
    peers, receiver = strangers.decode.service.parts.peers, strangers.decode.receiver
    with pytest.raises(AttemptFailed, match="4 other preflights") as busy:
        await peers.connect(other.peer, receiver)
    assert busy.value.failure is FailureKind.BUSY
    assert [pair.source for pair in reports(strangers.decode)] == [strangers.prefill.identity]
    waiting = asyncio.create_task(peers.connect(other.peer, receiver))  # at once: no pause
    receiver.disconnect(strangers.prefill.identity.incarnation)  # their reads end, and so do they
    await waiting
    await peers.connect(strangers.prefill.peer, receiver)
    assert not any(pair.is_refused for pair in reports(strangers.decode))


async def test_many_that_are_met_at_once_wait_for_their_turn() -> None:
    """A decode worker that is new to more prefill workers than it has slots, with requests."""
    patient = TransferConfig(transport="loopback")
    async with worker_pair(patient, introduced=False) as pair:
        readers = [pair.prefill]
        readers += [await pair.another("prefill", f"prefill-{n}") for n in range(1, 9)]
        pair.show(*readers, pair.decode)
        await pair.until(lambda: all(pair.links.usable(node.identity) for node in readers))
        pair.fabric.set_faults(Faults(delay_seconds=0.01))
        answers = await asyncio.gather(*(pair.ask([n] * 9, 4) for n in range(len(readers))))
        assert all(len(answer.tokens) == 4 for answer in answers)
        assert not pair.journeys.counters.failures
        assert len(reports(pair.decode)) == len(readers)
        assert not pair.decode.service.beat().pairs
