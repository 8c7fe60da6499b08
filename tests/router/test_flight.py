"""A flight under any order of words, losses and moves: all moves end, nothing is left behind."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.errors import FailureKind
from segue.cluster.fleet import WorkerState, WorkerView
from segue.cluster.handoff import Failure, TokenDelta
from segue.cluster.identity import AttemptId, Peer, WorkerIdentity
from segue.cluster.request import FinishReason
from segue.router.flight import Flight, FlightMove
from segue.router.links import DeltaFrom, LinkLost, WorkerLinks
from segue.router.policy import Binding, Load, Rung

CONTEXT = 10
BROKEN = Failure(FailureKind.TRANSFER, "broken")


def view(name: str) -> WorkerView:
    identity = WorkerIdentity(name, "x")
    peer = Peer(identity, "127.0.0.1:1")
    return WorkerView(identity, name, "both", WorkerState.READY, peer=peer)


PREFILL, *WRITERS = (view(name) for name in ("p", "d0", "d1", "d2", "d3"))
ACTS = ["tell", "repeat", "target tells", "target fails", "move", "let go", "stay"]
ENDINGS = ["finish", "fail", "lose writer", "lose target", "lose track", "nothing"]


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.load = Load()
        self.links = WorkerLinks("gateway", "token-of-this-test")
        binding = Binding(PREFILL, WRITERS[0], Rung.DISAGGREGATED)
        self.flight = Flight(
            self.links, self.load, AttemptId("r", 1), binding, CONTEXT, lambda: self.now
        )
        self.told = CONTEXT  # where the newest token ends
        self.moves: list[FlightMove] = []

    def say(self, attempt: AttemptId, worker: WorkerIdentity, **more: object) -> None:
        delta = TokenDelta(attempt, self.told, **more)  # type: ignore[arg-type]
        inbox = self.links._inboxes.get(attempt)
        if inbox is not None and worker in inbox.workers:
            inbox.hear(DeltaFrom(worker, delta))
            self.told += len(delta.token_ids)

    def lose(self, worker: WorkerIdentity) -> None:
        self.links._lost(worker, "gone")

    def act(self, name: str, number: int) -> None:
        flight, move = self.flight, self.flight.move
        self.now += 1.0
        match name:
            case "tell":
                self.say(flight.attempt, flight.writer, token_ids=(number,))
            case "repeat":
                again = TokenDelta(flight.attempt, CONTEXT, (number,))
                flight.hear(DeltaFrom(flight.writer, again))
            case "move" if flight.generates and move is None:
                target = next(w for w in WRITERS if w.identity != flight.writer)
                attempt = AttemptId("r", 2 + len(self.moves))
                self.moves.append(flight.begin_move(target, attempt))
            case "target tells" if move is not None:
                self.say(move.attempt, move.target.identity, token_ids=(number,))
            case "target fails" if move is not None:
                self.say(move.attempt, move.target.identity, failure=BROKEN)
            case "let go" if move is not None:
                flight.settle_move(move)
            case "stay" if move is not None:
                flight.give_up_move(move)
            case "finish":
                self.say(flight.attempt, flight.writer, finish=FinishReason.STOP)
            case "fail":
                self.say(flight.attempt, flight.writer, failure=BROKEN)
            case "lose writer":
                self.lose(flight.writer)
            case "lose target" if move is not None:
                self.lose(move.target.identity)
            case "lose track" if move is not None:
                flight.lose_track(move, "no word of it")


@given(
    st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 9)), max_size=30),
    st.sampled_from(ENDINGS),
    st.lists(st.sampled_from(ACTS), max_size=5),
)
def test_all_moves_end_and_nothing_is_left(
    acts: list[tuple[str, int]], ending: str, after: list[str]
) -> None:
    async def run() -> None:
        scene = Scene()
        flight = scene.flight
        for name, number in acts:
            before = scene.told
            scene.act(name, number)
            settled = [move for move in scene.moves if move.settled]
            if scene.told > before and flight.heard.qsize() and settled:
                assert all(move.landed.done() for move in settled), "a new token was told"
            writer = flight.move.target if flight.move is not None else None
            assert writer is None or scene.load.answers[writer.identity]
            assert sum(scene.load.answers.values()) == 1 + (flight.move is not None)
        scene.act(ending, 0)
        for name in after:
            scene.act(name, 0)
        flight.end(finished=False)
        assert all(move.landed.done() for move in scene.moves)
        assert not scene.load.answers and not scene.load.context_tokens
        assert not scene.links._inboxes
        flight.hear(LinkLost(flight.writer, "late"))
        items = [flight.heard.get_nowait() for _ in range(flight.heard.qsize())]
        ended = [item.delta for item in items if item.delta.finish or item.delta.failure]
        if ended:
            assert items[-1].delta in ended, "nothing is kept behind the end"

    asyncio.run(run())


def test_who_is_to_be_avoided_is_known_when_it_fails() -> None:
    async def run() -> None:
        for kind, culprit in (
            (FailureKind.CREDIT_REFUSED, WRITERS[0].identity),
            (FailureKind.BUSY, WRITERS[0].identity),
            (FailureKind.COMPUTE, PREFILL.identity),
        ):
            scene = Scene()
            failure = Failure(kind, "no")
            scene.say(scene.flight.attempt, PREFILL.identity, failure=failure)
            heard = scene.flight.heard.get_nowait()
            assert heard.culprit == culprit and heard.delta.failure == failure
            scene.flight.end(finished=False)

    asyncio.run(run())
