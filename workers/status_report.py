"""What a worker says about itself, computed from its state when it is asked."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from segue.cluster.worker_status import WorkerCondition, WorkerStatus

if TYPE_CHECKING:
    from segue.workers.service import WorkerService

STALLED_SECONDS = 60.0


def report(service: WorkerService) -> WorkerStatus:
    engine, receiver = service.parts.engine, service.parts.receiver
    scheduler, cache, counters = engine.scheduler, engine.cache, engine.counters
    blocks = cache.pool.counts()
    block_bytes = service.parts.facts.block_bytes
    idle = time.monotonic() - counters.last_progress
    busy = engine.num_sequences > 0 and scheduler.has_work
    condition = WorkerCondition.READY
    if not engine.is_alive or (busy and idle > STALLED_SECONDS):
        condition = WorkerCondition.STALLED
    elif service.attempts.draining:
        condition = WorkerCondition.DRAINING
    held = Counter(reason.value for reason in dict(scheduler.held).values())
    gauges = {
        "running_requests": len(scheduler.generation) + len(scheduler.context),
        "landing_requests": len(scheduler.landing),
        "waiting_requests": len(service.attempts)
        - scheduler.num_admitted,  # for credit, blocks or a slot
        "leases": len(service.leases),
        "reads_in_flight": receiver.num_in_flight,
        "kv_blocks_total": cache.pool.num_blocks,
        "kv_block_bytes": block_bytes,
        "kv_blocks_promised": cache.promised_blocks,
        **{f"kv_blocks_{state.value}": count for state, count in blocks.items()},
        **{f"held_{reason}": count for reason, count in held.items()},
    }
    totals = {
        "steps": counters.steps,
        "context_tokens": counters.context_tokens,
        "generated_tokens": counters.generated_tokens,
        "attempts_received": service.attempts.received,
        "kv_bytes_announced": service.decode.blocks_read * block_bytes,
        "kv_bytes_overlapped": service.decode.blocks_overlapped * block_bytes,
        "kv_bytes_read": receiver.transport.bytes_read,
        "prefix_cache_queried_tokens": cache.statistics.queried_tokens,
        "prefix_cache_reused_tokens": cache.statistics.reused_tokens,
        **{f"attempts_ended_{name}": n for name, n in service.attempts.ended.items()},
        **{f"lease_{name.replace(' ', '_')}": n for name, n in service.leases.verdicts.items()},
    }
    return WorkerStatus(
        identity=service.identity,
        role=service.parts.facts.role,
        condition=condition,
        gauges={name: float(value) for name, value in gauges.items()},
        counters={name: float(value) for name, value in totals.items()},
        transport=receiver.transport.name,
        seconds_since_step=idle if busy else 0.0,
    )
