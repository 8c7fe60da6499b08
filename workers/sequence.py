"""One attempt at a request inside a worker: its tokens, its blocks, how far it has come."""

from dataclasses import dataclass, field
from enum import StrEnum

from segue.cluster.block_hash import WORD_BYTES, token_words
from segue.cluster.handoff import Assignment
from segue.cluster.identity import AttemptId, Peer
from segue.cluster.request import GenerationRequest
from segue.cluster.retention import NOTHING_SPECIAL, Retention
from segue.workers.kvcache.node import Node


class Phase(StrEnum):
    """Where an attempt stands. Each phase names what it waits for, if it waits."""

    CREDIT_WAIT = "credit_wait"  # prefill side: for room on the decode worker
    QUEUED = "queued"  # for blocks and a slot here
    LANDING = "landing"  # decode side: for the prompt's KV
    CONTEXT = "context"
    GENERATION = "generation"
    MIGRATING = "migrating"  # stopped here: for its new worker to take over
    ENDING = "ending"  # for its last token, which a step under way computes
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens [0, num_computed) have their KV in `block_ids`; `tokens[-1]` may not yet.

    While it generates, `tokens` and `num_computed` lag by up to a block: see GenerationBatch.

    `num_context` tokens were known when the attempt began: the prompt and what earlier attempts
    produced. `num_prompt` of them are the client's.
    """

    assignment: Assignment
    deadline: float
    decode_peer: Peer | None = None  # prefill side: who decodes; None: this worker
    source: Peer | None = None  # decode side: who prefilled; None: this worker
    lease_id: str = ""
    phase: Phase = Phase.QUEUED
    arrived: float = 0.0  # at its gateway, by this worker's clock
    moves: bool = False  # decode side: its source generates meanwhile, and holds its KV
    tokens: list[int] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0  # tokens found in the prefix cache at admission
    num_reused: int = 0  # of the context, by whoever computed it first: what the client is told
    num_published: int = 0  # leading blocks whose content is findable or known elsewhere
    max_blocks: int = 0  # promised in all, those held included; 0 while it is not admitted
    promised_blocks: int = 0  # of them still to be allocated under the admission guarantee
    root_key: bytes | None = None  # where its keys begin; whoever asks first finds out
    last_node: Node | None = None  # of block num_published - 1, in the tree or no longer
    num_drafts: int = 0  # speculative tokens that each of its steps carries beside the real one
    beam_width: int = 1  # answers that it carries on side by side
    adapter: str | None = None  # weights beside the model's; KV is shared only within one adapter
    num_pauses: int = 0
    order: tuple[float, float, int] = (0.0, 0.0, 0)  # its place in every queue of the scheduler
    row: int | None = None  # in the generation batch, which then knows its newest tokens

    request: GenerationRequest = field(init=False)
    retention: Retention = field(init=False)
    attempt: AttemptId = field(init=False)
    num_prompt: int = field(init=False)
    num_context: int = field(init=False)
    num_final: int = field(init=False)  # tokens when the answer is as long as it may be
    # Its context comes from a peer. Once paused, what had landed is computed here instead.
    lands: bool = field(init=False)
    _words: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        self.request = self.assignment.request
        plain = self.request.retention == NOTHING_SPECIAL
        self.retention = NOTHING_SPECIAL if plain else self.request.retention
        self.attempt = self.assignment.attempt_id
        self.lands = self.source is not None
        self.tokens = [*self.request.prompt_token_ids, *self.assignment.produced_token_ids]
        self.num_prompt = self.request.num_prompt_tokens
        self.num_context = len(self.tokens)
        self._words = token_words(self.tokens)
        self.num_final = max(self.num_context, self.num_prompt + self.request.stop.max_tokens)

    def words(self) -> bytes:
        """`tokens` as `token_words`; only what came since the last time is converted."""
        words = self._words
        if len(words) != WORD_BYTES * len(self.tokens):
            words += token_words(self.tokens[len(words) // WORD_BYTES :])
            self._words = words
        return words

    def rewind(self, num_tokens: int) -> None:
        """Tokens from `num_tokens` on were not accepted: others will stand there."""
        del self.tokens[num_tokens:]
        self._words = self._words[: num_tokens * WORD_BYTES]
        self.num_computed = min(self.num_computed, num_tokens)

    def waited(self, now: float) -> float:
        """Seconds since its gateway took it on."""
        return max(0.0, now - self.arrived)

    @property
    def num_produced(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def hands_off(self) -> bool:
        return self.decode_peer is not None

    @property
    def can_be_paused(self) -> bool:
        """Not a context of which a reader may hold a part already: what is leased is not given
        back, and beside it the whole context might never fit again. It has all its blocks, so it
        ends by itself."""
        return self.decode_peer is None or self.num_computed <= self.num_cached

    @property
    def step_width(self) -> int:
        """Tokens of one step of its generation."""
        return self.beam_width + self.num_drafts

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed
