"""An engine that a test drives by hand, with everything that it said."""

import functools
from collections.abc import Callable

from engine_parts import PEER, FakeRunner, expected_tokens, make_engine, make_scheduler

from segue.cluster.handoff import Announcement, TokenDelta
from segue.workers.engine import Engine
from segue.workers.kvcache.block_pool import BlockState
from segue.workers.sequence import Sequence
from segue.workers.step_outcome import ChunkReady, StepOutcome


class Desk:
    """An engine that is driven by hand, and everything that it said."""

    def __init__(
        self,
        num_blocks: int = 10,
        slots: int = 8,
        chunk: int = 8,
        *,
        policy: str = "max_utilization",
        expected_output: str | int = "full",
        ageing: float | None = None,
        chunking: str = "first_come_first_served",
    ) -> None:
        self.runner = FakeRunner(num_blocks, 4)
        self.deltas: dict[str, list[TokenDelta]] = {}
        self.chunks: list[ChunkReady] = []
        self.ended: list[str] = []
        self.handed_off: list[str] = []
        self.read_rounds = 3  # that a reader takes behind the last chunk of a prompt
        self._leased: dict[str, list[int]] = {}
        self._readers: list[tuple[int, str]] = []  # rounds left
        scheduler = make_scheduler(
            num_blocks,
            max_num_seqs=slots,
            chunk=chunk,
            policy=policy,
            expected_output=expected_output,
            ageing=ageing,
            chunking=chunking,
        )
        self.engine: Engine = make_engine(scheduler, self.runner, self._hear)

    def _hear(self, outcome: StepOutcome) -> None:
        for _, delta in outcome.deltas():
            self.deltas.setdefault(delta.attempt.request_id, []).append(delta)
        self.chunks += outcome.chunks
        for chunk in outcome.chunks:
            self._read(chunk)
        for ended in outcome.ended:  # its lease is cancelled
            self._readers.append((0, ended.sequence.request.request_id))
        self.ended += [ended.sequence.request.request_id for ended in outcome.ended]
        for sequence in outcome.granted:
            self._land(sequence)

    def _read(self, chunk: ChunkReady) -> None:
        """A reader lets go of everything some rounds behind the last chunk, and not before."""
        name = chunk.sequence.request.request_id
        self._leased.setdefault(name, []).extend(chunk.block_ids if chunk.leases else ())
        if chunk.first_token is not None:
            self.handed_off.append(name)
            self._readers.append((self.read_rounds, name))

    def let_go(self) -> None:
        going = [(rounds - 1, name) for rounds, name in self._readers]
        self._readers = [(rounds, name) for rounds, name in going if rounds > 0]
        for rounds, name in going:
            if rounds <= 0:
                self.engine.end_lease(tuple(self._leased.pop(name, ())))

    def _land(self, sequence: Sequence) -> None:
        for position, token in enumerate(sequence.tokens):
            self.runner.slots[sequence.block_ids[position // 4]][position % 4] = token
        first = expected_tokens(sequence.tokens, 1)[0]
        last = Announcement(PEER, sequence.attempt, 1, 0, (), (), first, 0)
        self.engine.post(functools.partial(self.engine.land, sequence, last))

    def run(self, until: Callable[[], bool], limit: int = 2000) -> None:
        for _ in range(limit):
            if until():
                return
            self.engine.run_once()
            self.let_go()
            sequences = self.engine.scheduler.sequences()
            self.engine.cache.check_integrity(sequences)
        raise AssertionError("it did not happen")

    def tokens(self, name: str) -> list[int]:
        """Every delta continues exactly where the last one ended."""
        found: list[int] = []
        for delta in self.deltas.get(name, ()):
            assert delta.position == self.deltas[name][0].position + len(found)
            found += delta.token_ids
        return found

    def assert_idle(self) -> None:
        counts = self.engine.cache.pool.counts()
        assert counts[BlockState.OWNED] == counts[BlockState.LANDING] == 0
        assert self.engine.num_sequences == self.engine.scheduler.num_admitted == 0
        assert self.engine.cache.promised_blocks == 0 and not self.engine.scheduler.held
