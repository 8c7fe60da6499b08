"""The KV manager against a naive model, under any order of what can happen to it.

The model is memory in thought, which forgets nothing about what lies where, and a brute-force
search over all that is published. Writes from outside come as early as they may.
"""

from dataclasses import replace

from engine_parts import make_sequence
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kv_memory import Content, KVMemory

from segue.cluster.block_hash import KeyScope, root_key
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.retention import Retention, RetentionRange
from segue.workers.kvcache.block_pool import BlockPool
from segue.workers.kvcache.events import BlockIndex
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.node import Node
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.sequence import Sequence

B = 3
NUM_BLOCKS = 9
NUM_SLOTS = 4
SCOPE = KeyScope("m", "float32", B, "p")
SOURCE = Peer(WorkerIdentity("prefill-0", "aa"), "127.0.0.1:1")
SALTS = {root_key(replace(SCOPE, salt=salt or None)): salt for salt in ("", "s")}
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=14)
retentions = st.one_of(
    st.just(Retention()),
    st.builds(
        lambda start, end, priority, duration: Retention(
            (RetentionRange(start, end, priority, duration),), decode_priority=priority
        ),
        st.integers(0, 4),
        st.one_of(st.none(), st.integers(5, 9)),
        st.integers(0, 100),
        st.one_of(st.none(), st.floats(0.5, 5.0)),
    ),
)


def path_of(node: Node) -> tuple[str, tuple[int, ...]]:
    """The salt and the tokens that a node of the tree stands for."""
    pieces: list[bytes] = []
    while node.parent is not None:
        pieces.append(node.piece)
        node = node.parent
    assert node.key is not None
    words = b"".join(reversed(pieces))
    return SALTS[node.key], tuple(memoryview(words).cast("I"))


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = KVMemory(NUM_BLOCKS, B, NUM_SLOTS)
        self.live: list[Sequence] = []
        self.paused: list[Sequence] = []
        self.told_to_land: set[Sequence] = set()
        self.leases: list[tuple[tuple[int, ...], list[list[Content]]]] = []
        self.count = 0
        self.now = 0.0

    @initialize(
        partial=st.booleans(),
        copy_on_partial=st.booleans(),
        num_slots=st.sampled_from([0, 1, NUM_SLOTS]),
        min_priority=st.sampled_from([0, 35, 60]),
        event_capacity=st.sampled_from([3, 1000]),
    )
    def begin(
        self,
        partial: bool,
        copy_on_partial: bool,
        num_slots: int,
        min_priority: int,
        event_capacity: int,
    ) -> None:
        policy = ReusePolicy(
            True, partial, copy_on_partial, num_slots, min_priority, event_capacity
        )
        self.cache = KVCache(BlockPool(NUM_BLOCKS), B, SCOPE, policy)
        self.index = BlockIndex()

    # -- rules -------------------------------------------------------------------------------

    @rule(
        prompt=tokens,
        max_tokens=st.integers(1, 9),
        landing=st.booleans(),
        salt=st.sampled_from(list(SALTS.values())),
        retention=retentions,
        total_tokens=st.one_of(st.none(), st.integers(0, 12)),
    )
    def admit(
        self,
        prompt: list[int],
        max_tokens: int,
        landing: bool,
        salt: str,
        retention: Retention,
        total_tokens: int | None,
    ) -> None:
        self.count += 1
        source = SOURCE if landing else None
        sequence = make_sequence(str(self.count), prompt, max_tokens, source=source, salt=salt)
        sequence.retention = retention
        self._admit(sequence, landing, total_tokens)

    def _admit(self, sequence: Sequence, landing: bool, total_tokens: int | None) -> None:
        before, match = self.cache.pool.counts(), self.cache.match(sequence, whole_blocks=landing)
        assert match.num_tokens == self._naive_match(sequence, landing)
        if self.cache.admit(sequence, landing=landing, total_tokens=total_tokens):
            assert sequence.num_cached == match.num_tokens < len(sequence.tokens)
            self.live.append(sequence)
        else:
            assert self.cache.pool.counts() == before, "a refusal changes nothing"
            too_large = self.cache.final_tokens(sequence) > NUM_BLOCKS * B
            assert self.live or self.leases or too_large

    def _naive_match(self, sequence: Sequence, whole: bool) -> int:
        """The longest common beginning of the usable tokens and of anything published."""
        wanted, best = sequence.tokens[:-1], 0
        tree, content = self.cache._content.tree, self.cache._content
        for node in tree.nodes():
            salt, path = path_of(node)
            if salt != sequence.request.cache_salt:
                continue
            common = 0
            while common < min(len(wanted), len(path)) and wanted[common] == path[common]:
                common += 1
            last = (len(path) - 1) // B * B
            complete = common == len(path) and len(path) % B == 0
            policy, idle_leaf = self.cache.policy, content.is_idle(node) and node.is_leaf
            part_counts = policy.partial and not whole and common > last
            if complete or (part_counts and (policy.copy_on_partial or idle_leaf)):
                best = max(best, common)
        return best

    @rule(prompt=tokens, salt=st.sampled_from(list(SALTS.values())), retention=retentions)
    def serve(self, prompt: list[int], salt: str, retention: Retention) -> None:
        """A whole life at once: what most fills the cache."""
        self.count += 1
        sequence = make_sequence(str(self.count), prompt, 1, salt=salt)
        sequence.retention = retention
        self._admit(sequence, False, 0)
        if sequence.block_ids:
            self._run_copies()
            self.memory.write(sequence, sequence.num_computed, len(prompt))
            sequence.num_computed = len(prompt)
            assert self.memory.holds(sequence)
            self.live.remove(sequence)
            self.cache.free(sequence)
            self._check_memory()

    @rule(data=st.data())
    def readmit(self, data: st.DataObject) -> None:
        if self.paused:
            sequence = data.draw(st.sampled_from(self.paused))
            self._admit(sequence, False, 0)
            if sequence.block_ids:
                self.paused.remove(sequence)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Some sequences grow, the copies run, grants are told, and what grew is computed."""
        running: list[tuple[Sequence, int]] = []
        for sequence in self.live:
            if not self.cache.landing_blocks(sequence) and data.draw(st.booleans()):
                end = data.draw(st.integers(sequence.num_computed + 1, len(sequence.tokens) + 1))
                running.extend(self._grow(sequence, end))
        self._run_copies()
        for sequence, end in running:
            self.memory.write(sequence, sequence.num_computed, end)
            sequence.num_computed = end
            self.cache.publish(sequence)
        self._check_memory()

    def _grow(self, sequence: Sequence, end: int) -> list[tuple[Sequence, int]]:
        if end > len(sequence.tokens):
            missing = self.cache.blocks_for(end) - len(sequence.block_ids)
            unpromised = max(0, missing - sequence.promised_blocks)
            if unpromised > self.cache.pool.num_available - self.cache.promised_blocks:
                return []
            sequence.tokens.append(end % 2)
            self.cache.extend(sequence, end)
        return [(sequence, end)]

    def _run_copies(self) -> None:
        self.memory.run(self.cache.take_copies())
        self.cache.end_copies()
        for sequence in self.live:
            landing = self.cache.landing_blocks(sequence)
            if landing and sequence not in self.told_to_land:
                self.told_to_land.add(sequence)
                self.memory.scribble(landing)

    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        landing = [s for s in self.live if s in self.told_to_land]
        if landing:
            sequence = data.draw(st.sampled_from(landing))
            self.told_to_land.remove(sequence)
            self.memory.write(sequence, sequence.num_computed, len(sequence.tokens))
            self.cache.land(sequence)

    @rule(data=st.data(), pause=st.booleans())
    def end(self, data: st.DataObject, pause: bool) -> None:
        if self.live:
            sequence = data.draw(st.sampled_from(self.live))
            self.live.remove(sequence)
            self.told_to_land.discard(sequence)
            if pause and sequence.source is None:
                self.cache.pause(sequence)
                self.cache.pause(sequence)  # again: nothing happens
                self.paused.append(sequence)
            else:
                self.cache.free(sequence)

    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def fork(self, data: st.DataObject, more: list[int]) -> None:
        parents = [s for s in self.live if s.num_computed and not self.cache.landing_blocks(s)]
        if not parents:
            return
        parent = data.draw(st.sampled_from(parents))
        self.count += 1
        kept = data.draw(st.integers(1, parent.num_computed))
        child = make_sequence(
            str(self.count), parent.tokens[:kept] + more, 3, salt=parent.request.cache_salt
        )
        counts = self.cache.pool.counts()
        same = child.tokens[: min(parent.num_computed, len(child.tokens) - 1)]
        if same != parent.tokens[: len(same)]:
            return
        if self.cache.fork(parent, child):
            assert child.num_computed >= min(kept, len(child.tokens) - 1)
            self.live.append(child)
        else:
            assert self.cache.pool.counts() == counts

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        able = [s for s in self.live if not self.cache.landing_blocks(s)]
        if able:
            sequence = data.draw(st.sampled_from(able))
            least = max(1, sequence.num_published * B, sequence.num_computed)
            keep = data.draw(st.integers(least, max(least, len(sequence.tokens))))
            context = sequence.num_context
            del sequence.tokens[max(keep, context) :]
            self.cache.rewind(sequence, max(keep, context))

    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        self._run_copies()
        owners = [s for s in self.live if s.num_computed and not self.cache.landing_blocks(s)]
        if owners:
            sequence = data.draw(st.sampled_from(owners))
            blocks = tuple(sequence.block_ids[: sequence.num_computed // B])
            self.cache.pool.lease(blocks)
            self.leases.append((blocks, [list(self.memory.device[b]) for b in blocks]))

    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        if self.leases:
            blocks, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
            self.cache.pool.end_lease(blocks)

    @rule(seconds=st.floats(0.1, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.cache.refresh(self.now)

    @rule(run_first=st.booleans())
    def copies_fail(self, run_first: bool) -> None:
        copies = self.cache.take_copies()
        if run_first:
            self.memory.run(copies[: len(copies) // 2])
        for sequence in self.cache.abandon_copies(self.live):
            self.live.remove(sequence)
            self.cache.free(sequence)

    # -- invariants --------------------------------------------------------------------------

    @invariant()
    def balances(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity(self.live)
        assert self.cache.promised_blocks <= self.cache.pool.num_available
        for blocks, content in self.leases:
            assert [self.memory.device[block] for block in blocks] == content

    @invariant()
    def events_give_the_same_index(self) -> None:
        if not hasattr(self, "cache"):
            return
        batch = self.cache.events.read(self.index.number)
        if batch.gap:
            self.index = BlockIndex(self.cache.snapshot())
        else:
            for event in batch.events:
                self.index.apply(event)
        truth = self.cache.snapshot()
        assert self.index.number == truth.number
        assert self.index.blocks == {block.key: block for block in truth.blocks}
        assert len(self.index.blocks) == len(truth.blocks), "two blocks have one key"

    def _check_memory(self) -> None:
        """No copy is under way: everything lies where it is said to lie."""
        for sequence in self.live:
            assert self.memory.holds(sequence)
        for node in self.cache._content.tree.nodes():
            salt, path = path_of(node)
            if node.block_id is not None:
                slots = self.memory.device[node.block_id]
            else:
                assert node.slot is not None
                slots = self.memory.host[node.slot]
            start = (len(path) - 1) // B * B
            expected = [(salt, path[: position + 1]) for position in range(start, len(path))]
            assert slots[: len(expected)] == expected

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for blocks, _ in self.leases:
            self.cache.pool.end_lease(blocks)
        for sequence in self.live:
            self.cache.free(sequence)
        self.memory.run(self.cache.take_copies())
        self.cache.end_copies()
        self.cache.check_integrity([])
        assert self.cache.pool.num_available == NUM_BLOCKS, "something is held by nobody"
        assert self.cache.promised_blocks == 0


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase
