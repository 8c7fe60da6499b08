"""A request on its way from here to another worker: what was told to that, and who has it."""

import asyncio
import secrets
from dataclasses import dataclass, field

from segue.cluster.handoff import MigrationOrder, MigrationReport
from segue.workers.attempts import Running


@dataclass(slots=True, eq=False)
class Move:
    """`moved`, once set, is final: the target goes on and nobody else may."""

    order: MigrationOrder
    running: Running
    lease_id: str = field(default_factory=lambda: secrets.token_hex(8))
    num_known: int = 0  # tokens of the target's assignment
    reserving: bool = False  # from here on the target may hold something for it
    next_block: int = 0
    num_blocks: int = 0
    num_blocks_stopped: int = 0
    num_tokens: int = 0
    halted_at: float | None = None
    stopped_seconds: float = 0.0
    moved: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # its lease
    task: asyncio.Task[MigrationReport] | None = None
    given_up: str = ""

    def report(self, block_bytes: int) -> MigrationReport:
        return MigrationReport(
            self.num_tokens,
            self.num_blocks,
            self.num_blocks * block_bytes,
            self.num_blocks_stopped,
            self.stopped_seconds,
        )
