"""The source side of a move: a request that generates here goes on at another worker.

    credit -> lease open -> (whole blocks announced and read)* -> halt -> the rest -> released

It generates on while its whole blocks are read; only the last ones are moved while it stands still.
Who may go on is decided in one place, the lease: released as held, it is the reader's; ended here
before that, it stays, and the fence makes the reader throw away what it has.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from segue.cluster.config.transfer import TransferConfig
from segue.cluster.errors import (
    AttemptFailed,
    DeadlineExceeded,
    FailureKind,
    InvalidRequest,
    SegueError,
    StaleReference,
    Unavailable,
)
from segue.cluster.handoff import (
    Announcement,
    Assignment,
    LeaseRelease,
    LeaseVerdict,
    MigrationOrder,
    MigrationReport,
    Reservation,
)
from segue.cluster.identity import AttemptId
from segue.kvtransfer.lease import EndedLease
from segue.workers.attempts import Attempts
from segue.workers.departure import Piece, export, exported, halt, snapshot, take_back
from segue.workers.engine import Engine
from segue.workers.lease_desk import LeaseDesk
from segue.workers.move import Move
from segue.workers.peers import Peers

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 5.0
PIECE_BLOCKS = 32  # exported between two steps: their checksums hold everybody up


class Migrations:
    """Lives on the event loop."""

    def __init__(
        self,
        *,
        attempts: Attempts,
        engine: Engine,
        peers: Peers,
        leases: LeaseDesk,
        transfer: TransferConfig,
        block_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._attempts = attempts
        self._engine = engine
        self._peers = peers
        self._leases = leases
        self._transfer = transfer
        self._block_bytes = block_bytes
        self._clock = clock
        self._moves: dict[AttemptId, Move] = {}  # by the attempt under which the target goes on
        self._background: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._moves)

    async def migrate(self, order: MigrationOrder) -> MigrationReport:
        """Returns once the target has it. Whatever is raised, it goes on here unless it ended."""
        move = self._begin(order)
        task = move.task = asyncio.create_task(self._own(move), name=f"move {order.attempt}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:  # the caller is gone
            self._give_up_soon(move, "the order was withdrawn")
            raise

    def _begin(self, order: MigrationOrder) -> Move:
        running = self._attempts.get(order.attempt)
        if running is None:
            raise InvalidRequest(f"{order.attempt} does not run here", param="request")
        if order.destination.identity == self._peers.identity:
            raise InvalidRequest(f"{order.attempt} is here already", param="worker")
        if order.known_position < running.sequence.num_prompt:
            raise InvalidRequest("known_position is within the prompt", param="known_position")
        if any(move.running is running for move in self._moves.values()):
            message = f"{order.attempt} is being moved already"
            raise AttemptFailed(FailureKind.REFUSED, message)
        move = self._moves[order.new_id] = Move(order, running)
        return move

    # -- from outside, on the event loop -----------------------------------------------------

    def on_release(self, release: LeaseRelease, verdict: LeaseVerdict) -> None:
        """The reader is done. If it has all, under a lease that was held, it goes on there."""
        move = self._moves.get(release.attempt)
        if move is None or move.lease_id != release.lease_id:
            return
        if release.completed and verdict.held and move.halted_at is not None:
            sequence = move.running.sequence
            move.moved = True
            move.stopped_seconds = self._clock() - move.halted_at
            self._attempts.end(sequence.attempt, "migrated")
            self._engine.post(lambda: self._engine.drop(sequence))
        move.ended.set()

    def on_lease_expired(self, lease: EndedLease) -> None:
        move = self._moves.get(lease.attempt)
        if move is not None and move.lease_id == lease.lease_id:
            move.ended.set()

    def abort(self, attempt: AttemptId) -> bool:
        """Nobody wants the move to `attempt` any more. False: there is none."""
        move = self._moves.get(attempt)
        if move is not None:
            self._give_up_soon(move, "aborted by the gateway")
        return move is not None

    def _give_up_soon(self, move: Move, reason: str) -> None:
        """Not before the owner's first step: a task cancelled earlier never runs its `finally`."""
        asyncio.get_running_loop().call_soon(self._give_up, move, reason)

    def _give_up(self, move: Move, reason: str) -> None:
        if move.task is not None and not move.task.done() and not move.given_up:
            move.given_up = reason
            move.task.cancel()

    # -- the owner of one move ---------------------------------------------------------------

    async def _own(self, move: Move) -> MigrationReport:
        running = move.running
        abort = running.abort

        def abort_both(reason: str) -> None:
            abort(reason)
            self._give_up_soon(move, reason)

        running.abort = abort_both
        error: SegueError = AttemptFailed(FailureKind.REFUSED, "given up")
        limit = self._transfer.longest_move_s
        try:
            async with asyncio.timeout(limit):
                await self._reserve(move)
                await self._copy_what_is_whole(move)
                await self._hand_over(move)
        except asyncio.CancelledError:
            error = AttemptFailed(FailureKind.REFUSED, f"given up: {move.given_up}")
        except TimeoutError:
            message = f"it could not be moved within {limit:g} s"
            error = AttemptFailed(FailureKind.DEADLINE, message)
        except StaleReference as failure:  # our own lease has expired
            error = AttemptFailed(FailureKind.FENCED, failure.message)
        except SegueError as failure:
            error = failure
        except Exception as failure:
            logger.exception("moving %s failed", move.order.attempt)
            error = AttemptFailed(FailureKind.TRANSFER, repr(failure))
        finally:
            running.abort = abort
            del self._moves[move.order.new_id]
        if not move.moved:
            self._stay(move, error)
            raise error
        return move.report(self._block_bytes)

    async def _reserve(self, move: Move) -> None:
        order, sequence = move.order, move.running.sequence
        tokens = await asyncio.wrap_future(
            self._engine.call(lambda: snapshot(self._engine, sequence))
        )
        if tokens is None:
            raise AttemptFailed(FailureKind.REFUSED, f"{order.attempt} does not generate now")
        move.num_known = min(order.known_position, len(tokens))
        now = self._clock()
        assignment = Assignment(
            sequence.request,
            order.new_attempt,
            tokens[sequence.num_prompt : move.num_known],
            sequence.assignment.gateway_id,
            max(0.001, sequence.deadline - now),
            sequence.waited(now),
        )
        wait = self._transfer.migration_wait_s
        reservation = Reservation(assignment, self._peers.me, move.lease_id, wait, grows=True)
        target = self._peers.client(order.destination)
        move.reserving = True
        self._leases.expect(move.lease_id, order.destination.identity, order.new_id)
        outcome = await _told(target.reserve(reservation, deadline_s=wait + 5.0))
        if outcome.failure is not None:
            move.reserving = False
            raise outcome.failure.to_error()
        move.next_block = outcome.num_cached_blocks
        self._leases.open(move.lease_id)

    async def _copy_what_is_whole(self, move: Move) -> None:
        """Round by round, each waits until all that is whole was read. At most one more block, or
        as many as in the round before, are left to be read while it stands still."""
        engine, sequence = self._engine, move.running.sequence
        in_round = before = 0
        while True:
            first = move.next_block
            piece = await exported(
                engine,
                lambda first=first: export(engine, sequence, first, PIECE_BLOCKS),  # type: ignore[misc]
            )
            in_round += len(piece.block_ids)
            if len(piece.block_ids) == PIECE_BLOCKS:
                await self._announce(move, piece)
                continue
            again = in_round > 1 and (not before or in_round < before)
            if piece.block_ids:
                await self._announce(move, piece, answer_when_read=again or not before)
            if not again:
                return
            before, in_round = in_round, 0

    async def _hand_over(self, move: Move) -> None:
        engine, sequence, first = self._engine, move.running.sequence, move.next_block
        piece = await exported(engine, lambda: halt(engine, sequence, first, move.num_known))
        move.halted_at = self._clock()
        move.num_tokens = move.num_known + len(piece.token_ids)
        move.num_blocks_stopped = len(piece.block_ids)
        pause = self._transfer.migration_pause_s
        try:
            async with asyncio.timeout(pause):
                await self._announce(move, piece)
                await move.ended.wait()
        except TimeoutError:
            message = f"{move.order.destination.identity} did not take over within {pause:g} s"
            raise AttemptFailed(FailureKind.PEER_LOST, message) from None
        if not move.moved:
            message = f"{move.order.destination.identity} gave it back"
            raise AttemptFailed(FailureKind.TRANSFER, message)

    async def _announce(self, move: Move, piece: Piece, *, answer_when_read: bool = False) -> None:
        try:
            self._leases.add_blocks(move.lease_id, piece.block_ids)
        except Exception:
            self._engine.post(lambda: self._engine.end_lease(piece.block_ids))
            raise
        move.next_block += len(piece.block_ids)
        move.num_blocks += len(piece.block_ids)
        announcement = Announcement(
            source=self._peers.me,
            attempt=move.order.new_id,
            pool_generation=self._leases.generation,
            first_block=piece.first_block,
            block_ids=piece.block_ids,
            checksums=piece.checksums,
            first_token=piece.last_token,
            token_ids=piece.token_ids,
            answer_when_read=answer_when_read,
        )
        target = self._peers.client(move.order.destination)
        deadline = self._transfer.read_timeout_s + 5.0
        await _told(target.announce(announcement, deadline_s=deadline))

    # -- it stays ----------------------------------------------------------------------------

    def _stay(self, move: Move, error: SegueError) -> None:
        """First the lease ends, so that the target cannot go on, then the sequence does."""
        sequence = move.running.sequence
        logger.warning("%s stays here: %s", sequence.attempt, error)
        self._leases.abandon(move.lease_id, move.order.new_id)
        self._engine.post(lambda: take_back(self._engine, sequence), sequence)
        if move.reserving:
            task = asyncio.create_task(self._cancel(move, error.message))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _cancel(self, move: Move, reason: str) -> None:
        try:
            await self._peers.client(move.order.destination).cancel(
                self._peers.me, move.order.new_id, reason, deadline_s=CANCEL_SECONDS
            )
        except SegueError as error:  # it holds nothing for us, or its deadline ends it
            logger.info("could not cancel %s: %s", move.order.new_id, error)

    async def close(self, timeout_s: float) -> None:
        tasks: set[asyncio.Task[Any]] = {m.task for m in self._moves.values() if m.task is not None}
        tasks |= self._background
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _told(call: Coroutine[Any, Any, Any]) -> Any:
    """What the target answers; that it cannot be reached is a failure of this move."""
    try:
        return await call
    except (Unavailable, DeadlineExceeded, StaleReference) as error:
        raise AttemptFailed(FailureKind.PEER_LOST, error.message) from error
