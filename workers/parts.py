"""What a worker is put together from, and what is known of it before it listens."""

from dataclasses import dataclass, field

from segue.cluster.loop_lag import LoopLag
from segue.kvtransfer.receiver import Receiver
from segue.workers.engine import Engine
from segue.workers.peers import Peers


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What is known of a worker before it listens."""

    role: str
    fingerprint: dict[str, str]
    transport_metadata: bytes
    num_blocks: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker is put together from."""

    engine: Engine
    receiver: Receiver
    peers: Peers
    facts: WorkerFacts
    lag: LoopLag = field(default_factory=LoopLag)  # of the event loop
