"""What a worker says about itself, computed from its state when it is asked."""

from collections import Counter

from segue.cluster.worker_status import WorkerStatus
from segue.workers.attempts import Attempts
from segue.workers.decode_role import DecodeRole
from segue.workers.kvcache.kv_cache import KVCache
from segue.workers.lease_desk import LeaseDesk
from segue.workers.parts import WorkerParts
from segue.workers.scheduler.scheduler import Scheduler
from segue.workers.sequence import Phase
from segue.workers.watchdog import Diagnosis

BLOCK_COUNTS = (
    *("reused_full", "reused_partial", "missed"),
    *("copied", "offloaded", "onboarded", "forgotten"),
)
_WAITING = (Phase.CREDIT_WAIT, Phase.QUEUED)  # for room on the decode worker; for blocks or a slot


def _room(cache: KVCache, scheduler: Scheduler) -> dict[str, float]:
    """Blocks by state, and what is left to promise; of answers only if not all of them is."""
    unpromised = max(0, cache.pool.num_available - cache.promised_blocks)
    usual = scheduler.settings.policy.usual_answer
    learned = scheduler.settings.policy.learned  # not what it only heard: that is no news
    return {
        "kv_blocks_total": cache.pool.num_blocks,
        "kv_blocks_promised": cache.promised_blocks,
        "kv_tokens_unpromised": unpromised * cache.block_size,
        "free_slots": scheduler.max_num_seqs - scheduler.num_admitted,
        **({} if usual is None else {"expected_output_tokens": usual}),
        **({} if learned is None else {"expected_output_share": learned.share}),
        **{f"kv_blocks_{state.value}": count for state, count in cache.pool.counts().items()},
    }


def report(
    parts: WorkerParts,
    attempts: Attempts,
    leases: LeaseDesk,
    decode: DecodeRole,
    diagnosis: Diagnosis,
) -> WorkerStatus:
    engine, receiver = parts.engine, parts.receiver
    scheduler, cache, counters = engine.scheduler, engine.cache, engine.counters
    block_bytes = parts.facts.block_bytes
    held = Counter(reason.value for reason in dict(scheduler.held).values())
    gauges = {
        "running_requests": len(scheduler.generation) + len(scheduler.context),
        "landing_requests": len(scheduler.landing),
        "waiting_requests": sum(r.sequence.phase in _WAITING for r in attempts.all()),
        "attempts": len(attempts),
        "leases": len(leases),
        "event_loop_lag_seconds": parts.lag.seconds,
        "reads_in_flight": receiver.num_in_flight,
        "reads_overdue": receiver.num_overdue,
        "kv_block_bytes": block_bytes,
        **_room(cache, scheduler),
        **decode.credits.gauges(),
        **{f"held_{reason}": count for reason, count in held.items()},
    }
    totals = {
        "steps": counters.steps,
        "context_tokens": counters.context_tokens,
        "generated_tokens": counters.generated_tokens,
        "pauses": counters.pauses,
        "defects_engine_command": counters.failed_commands,
        "defects_engine_step": counters.failed_steps,
        **decode.credits.counters(),
        "attempts_received": attempts.received,
        "fence_after_read/content": receiver.num_corrupt_blocks,
        "kv_bytes_announced": decode.bytes_announced,
        "kv_bytes_overlapped": decode.bytes_overlapped,
        "kv_bytes_read": receiver.kv_bytes_read,
        "prefix_cache_queried_tokens": cache.statistics.queried_tokens,
        "prefix_cache_reused_tokens": cache.statistics.reused_tokens,
        "kv_events": cache.events.last_number if cache.events.is_on else 0,
        **{f"kv_blocks_{name}": getattr(cache.statistics, name) for name in BLOCK_COUNTS},
        **{f"attempts_ended_{name}": n for name, n in attempts.ended.items()},
        **{f"lease_{name.replace(' ', '_')}": n for name, n in leases.verdicts.items()},
    }
    return WorkerStatus(
        identity=parts.peers.identity,
        role=parts.facts.role,
        condition=diagnosis.condition,
        gauges={name: float(value) for name, value in gauges.items()},
        counters={name: float(value) for name, value in totals.items()},
        transport=receiver.transport.name,
        cause=diagnosis.cause,
        stuck_seconds=diagnosis.stuck_seconds,
        pairs=parts.peers.pair_reports(),
    )
