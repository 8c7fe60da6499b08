"""The KV of one prompt on its way in: its credit, what was announced, what is being read."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from segue.cluster.errors import (
    AttemptFailed,
    FailureKind,
    SegueError,
    StaleKind,
    StaleReference,
    TransferError,
)
from segue.cluster.handoff import Announcement, Failure, Reservation
from segue.cluster.identity import Peer
from segue.kvtransfer.receiver import BlockRead, Receiver
from segue.workers.attempts import Running
from segue.workers.engine import Engine
from segue.workers.sequence import Sequence

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Landing:
    """`granted` resolves to the number of leading blocks that are here already."""

    running: Running
    reservation: Reservation
    asked: float  # when the reservation came here; the request itself may be older
    announced: asyncio.Queue[Announcement] = field(default_factory=asyncio.Queue)
    granted: asyncio.Future[int] = field(default_factory=asyncio.Future)
    heard: list[Announcement] = field(default_factory=list)  # one a chunk
    reads: list[BlockRead] = field(default_factory=list)
    # Of the blocks from `next_block` on, while only parts of them have been announced.
    part_ids: tuple[int, ...] = ()
    layers_told: int = 0
    part_reads: list[BlockRead] = field(default_factory=list)
    early_bytes: int = 0  # that had arrived when the source said that the last chunk was computed
    generation: int | None = None
    next_block: int = 0
    renewed_at: float = 0.0
    releasing: bool = False  # we are ending the lease ourselves: that it is unknown is no news
    task: asyncio.Task[None] | None = None

    @property
    def sequence(self) -> Sequence:
        return self.running.sequence

    @property
    def source(self) -> Peer:
        return self.reservation.source

    @property
    def has_credit(self) -> bool:
        return self.granted.done() and self.granted.exception() is None

    def grant(self, now: float) -> None:
        if not self.granted.done():
            self.next_block = self.sequence.num_published
            self.renewed_at = now
            self.granted.set_result(self.sequence.num_published)

    def refuse(self, error: Exception) -> bool:
        """False: the answer was given before."""
        if self.granted.done():
            return False
        self.granted.set_exception(error)
        self.granted.exception()  # whoever waits has it; nobody has to
        return True

    async def receive(
        self,
        receiver: Receiver,
        read_timeout_s: float,
        block_size: int,
        grow: Callable[[int], Awaitable[None]],
    ) -> Announcement:
        """Read what is announced, up to the last announcement; return that. Nothing is verified.

        `grow(n)` makes the sequence's blocks at least n.
        """
        while True:
            announcement = await self.announced.get()
            if announcement in self.heard:  # delivered twice
                self.announced.task_done()
                continue
            self.heard.append(announcement)
            end = announcement.first_block + len(announcement.block_ids)
            if self.reservation.grows and end > len(self.sequence.block_ids):
                await grow(end)
            if announcement.first_token is not None:
                self.early_bytes = sum(r.num_bytes for r in self.reads if r.verified.done())
            await self._read(announcement, receiver, read_timeout_s)
            self.announced.task_done()
            if announcement.first_token is not None:
                break
            self._raise_early_failure()
        num_tokens = self.sequence.num_context + len(announcement.token_ids)
        expected = -(-num_tokens // block_size)
        if self.next_block != expected:
            raise TransferError(f"{self.next_block} of {expected} blocks were announced")
        return announcement

    async def caught_up(self) -> None:
        """Until all that was announced so far has been read, or the owner has ended."""
        assert self.task is not None
        reading = asyncio.create_task(self._read_so_far())
        try:
            await asyncio.wait({reading, self.task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read_so_far(self) -> None:
        await self.announced.join()
        for read in list(self.reads):
            await asyncio.wait({asyncio.wrap_future(read.verified)})  # its owner takes its error

    async def verify(self) -> None:
        """Every read is complete and its bytes match their checksums; raises TransferError."""
        for read in self.reads:
            await asyncio.wrap_future(read.verified)

    @property
    def is_terminal(self) -> bool:
        """No byte can arrive any more."""
        return all(read.terminal.done() for read in self.reads)

    async def wait_terminal(self) -> None:
        """Until no byte can arrive any more. Not bounded: a timeout would prove nothing."""
        for read in self.reads:
            await asyncio.wrap_future(read.terminal)

    async def _read(self, announcement: Announcement, receiver: Receiver, timeout_s: float) -> None:
        if self.generation is None:
            self.generation = announcement.pool_generation
        if announcement.pool_generation != self.generation:
            raise StaleReference(
                "the source's pool generation changed during the handoff", StaleKind.GENERATION
            )
        first, count = announcement.first_block, len(announcement.block_ids)
        if first != self.next_block or first + count > len(self.sequence.block_ids):
            raise TransferError(f"blocks [{first}, {first + count}) were announced out of order")
        layers = self._layers(announcement, receiver.layout.num_layers)
        if not announcement.is_part:
            await self._end_parts()
            self.next_block = first + count
        if not count:
            return
        read = receiver.read(
            self.source.identity.incarnation,
            announcement.block_ids,
            tuple(self.sequence.block_ids[first : first + count]),
            announcement.checksums,
            timeout_s,
            layers,
        )
        self.reads.append(read)
        if announcement.is_part:
            self.part_reads.append(read)

    def _layers(self, announcement: Announcement, num_layers: int) -> range | None:
        """Which to read now, None for all; and notes which were told. Raises TransferError."""
        first, told = announcement.first_layer, self.layers_told
        stop = num_layers if announcement.stop_layer is None else announcement.stop_layer
        if told and announcement.block_ids != self.part_ids:
            raise TransferError("the blocks are not those whose first layers were announced")
        again = first == 0 and not announcement.is_part
        is_empty = first == stop and (announcement.is_part or not told)
        if not (first == told or again) or not first <= stop <= num_layers or is_empty:
            message = f"layers [{first}, {stop}) of {num_layers} were announced behind {told}"
            raise TransferError(message)
        if announcement.is_part:
            self.part_ids, self.layers_told = announcement.block_ids, stop
        else:
            self.part_ids, self.layers_told = (), 0
        return None if (first, stop) == (0, num_layers) else range(first, stop)

    async def _end_parts(self) -> None:
        """All of them have arrived, so the checksums of the whole blocks will be those of bytes
        that stay; and if the parts are read again, no byte of the first time comes after that."""
        for read in self.part_reads:
            await asyncio.wrap_future(read.verified)
        self.part_reads.clear()

    def _raise_early_failure(self) -> None:
        for read in self.reads:
            if read.verified.done() and (error := read.verified.exception()) is not None:
                raise error


def what_it_needs(engine: Engine, landing: Landing) -> str:
    """Of what there is too little, in numbers; read from another thread, so of about now."""
    cache, scheduler = engine.cache, engine.scheduler
    tokens = scheduler.settings.policy.tokens_to_promise(landing.sequence, cache)
    need = cache.blocks_for(tokens)
    free = max(0, cache.pool.num_available - cache.promised_blocks)
    return (
        f"it needs {need} KV blocks, {free} of {cache.pool.num_blocks} are neither held nor "
        f"promised; {scheduler.num_admitted} of {scheduler.max_num_seqs} sequences are admitted"
    )


def failure_of(sequence: Sequence, error: Exception) -> Failure:
    if isinstance(error, AttemptFailed):
        return Failure(error.failure, error.message, error.retryable)
    if isinstance(error, StaleReference):
        return Failure(FailureKind.FENCED, error.message)
    if isinstance(error, TimeoutError):
        message = f"deadline reached while in {sequence.phase}"
        return Failure(FailureKind.DEADLINE, message, retryable=False)
    if isinstance(error, SegueError):
        return Failure(FailureKind.TRANSFER, error.message)
    logger.error("receiving %s failed", sequence.attempt, exc_info=error)
    return Failure(FailureKind.TRANSFER, repr(error))
