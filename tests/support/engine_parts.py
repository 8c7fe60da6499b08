"""An engine on a fake model, for tests of what surrounds the model."""

from collections.abc import Callable, Sequence

import torch

from segue.cluster.block_hash import KeyScope
from segue.cluster.handoff import Assignment
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.request import GenerationRequest, SamplingParams, StopRule
from segue.workers.batch import PackedBatch
from segue.workers.engine import Engine
from segue.workers.kvcache.block_operations import (
    BlockOperation,
    CopyBlock,
    OffloadBlock,
    OnboardBlock,
)
from segue.workers.kvcache.block_pool import BlockPool
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.plan_recorder import PlanRecorder
from segue.workers.scheduler.chunking import ChunkingPolicy
from segue.workers.scheduler.microbatch import StepBudget
from segue.workers.scheduler.policies import capacity_policy
from segue.workers.scheduler.scheduler import Scheduler, SchedulerSettings
from segue.workers.sequence import Sequence as TokenSequence
from segue.workers.step_execution import LayerNews, StepExecution
from segue.workers.step_outcome import StepOutcome

VOCABULARY = 97
PEER = Peer(WorkerIdentity("decode-0", "00ff"), "127.0.0.1:1")


def next_token(tokens: Sequence[int]) -> int:
    """What the fake model says after `tokens`: each of them and its position matter."""
    return (sum(place * token for place, token in enumerate(tokens, 1)) + len(tokens)) % VOCABULARY


class FakeRunner:
    """Greedy logits for `next_token`, computed from what is in its own paged token store.

    Reading a slot that was never written for this sequence gives a wrong answer, as in a real
    cache: the fake stores each token at (block, slot) and reads the last one back from there.
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_slots: int = 0) -> None:
        self.block_size = block_size
        self.slots = [[-1] * block_size for _ in range(num_blocks)]
        self.host = [[-1] * block_size for _ in range(num_host_slots)]
        self.batches: list[PackedBatch] = []
        self.poison: set[int] = set()  # token ids that raise
        self.not_finite: set[int] = set()  # last tokens whose logits are NaN

    def token_at(self, block_id: int, slot: int) -> int:
        return self.slots[block_id][slot]

    def copy_blocks(self, operations: Sequence[BlockOperation]) -> None:
        for operation in operations:
            match operation:
                case CopyBlock(source, target, num_tokens):
                    self.slots[target][:num_tokens] = self.slots[source][:num_tokens]
                case OffloadBlock(block_id, slot):
                    self.host[slot] = list(self.slots[block_id])
                case OnboardBlock(slot, block_id):
                    self.slots[block_id] = list(self.host[slot])

    def execute(self, batch: PackedBatch, on_layers: LayerNews | None = None) -> torch.Tensor:
        batch = batch.in_slices()
        self.batches.append(batch)
        rows = []
        for piece in batch.slices:
            if self.poison & set(piece.token_ids):
                raise ValueError("a token that the model cannot take")
            for offset, token in enumerate(piece.token_ids):
                block, slot = divmod(piece.start + offset, self.block_size)
                self.slots[piece.block_ids[block]][slot] = token
            if piece.samples:
                seen = [
                    self.token_at(piece.block_ids[p // self.block_size], p % self.block_size)
                    for p in range(piece.end)
                ]
                row = torch.zeros(VOCABULARY)
                row[next_token(seen)] = 1.0
                if seen[-1] in self.not_finite:
                    row[0] = float("nan")
                rows.append(row)
        return torch.stack(rows) if rows else torch.zeros(0, VOCABULARY)


def make_scheduler(
    num_blocks: int = 32,
    block_size: int = 4,
    *,
    max_num_seqs: int = 8,
    max_tokens: int = 32,
    chunk: int = 8,
    reuse: bool | ReusePolicy = True,
    policy: str = "guaranteed_no_evict",
    chunking: str = "first_come_first_served",
    ageing: float | None = None,
    expected_output: str | int = "full",
    max_adapters: int | None = None,
) -> Scheduler:
    cache = KVCache(
        BlockPool(num_blocks), block_size, KeyScope("m", "float32", block_size, "p"), reuse
    )
    budget = StepBudget(max_tokens, chunk, block_size, ChunkingPolicy(chunking))
    settings = SchedulerSettings(
        max_num_seqs,
        capacity_policy(policy, expected_output),
        ageing,
        max_adapters=max_adapters,
    )
    return Scheduler(cache, budget, settings)


def make_sequence(
    name: str,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    attempt: int = 1,
    produced: Sequence[int] = (),
    salt: str = "",
    decode_peer: Peer | None = None,
    source: Peer | None = None,
    deadline: float = 1e9,
    priority: int = 0,
    arrived: float = 0.0,
    stop: frozenset[int] = frozenset(),
    adapter: str | None = None,
    moves: bool = False,
) -> TokenSequence:
    request = GenerationRequest(
        name,
        tuple(prompt),
        SamplingParams(temperature=0.0),
        StopRule(max_tokens, 0, stop),
        salt,
        priority,
    )
    assignment = Assignment(request, attempt, tuple(produced), "gateway", 60.0)
    return TokenSequence(
        assignment,
        deadline,
        decode_peer,
        source,
        lease_id=f"lease-{name}",
        arrived=arrived,
        adapter=adapter,
        moves=moves,
    )


def make_engine(
    scheduler: Scheduler,
    runner: FakeRunner,
    on_outcome: Callable[[StepOutcome], None],
    recorder: PlanRecorder | None = None,
) -> Engine:
    def checksum(block_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(hash(tuple(runner.slots[block_id])) % 2**32 for block_id in block_ids)

    return Engine(scheduler, StepExecution(runner, checksum), on_outcome, recorder=recorder)


def expected_tokens(prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]
