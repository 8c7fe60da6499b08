"""Which workers that write answers have room for one more, by what they said last. Pure."""

from collections.abc import Collection, Iterable

from segue.cluster.fleet import WorkerView
from segue.cluster.identity import WorkerIdentity
from segue.router.policy import is_apart
from segue.router.progress import Progress


class Rooms:
    """What decode workers had room for when they last said so, less what was sent there since."""

    def __init__(self, workers: Iterable[WorkerView]) -> None:
        self._workers = [worker for worker in workers if _takes_more(worker)]
        self._tokens: dict[WorkerIdentity, float] = {}
        self._slots: dict[WorkerIdentity, float] = {}
        for worker in self._workers:
            assert worker.status is not None
            gauges = worker.status.gauges
            self._tokens[worker.identity] = gauges.get("kv_tokens_unpromised", 0.0)
            self._slots[worker.identity] = gauges.get("free_slots", 0.0)

    def take(
        self, progress: Progress, source: WorkerView, not_to: Collection[WorkerIdentity]
    ) -> WorkerView | None:
        """Where the request fits, with most to spare, of those that can read from `source` and are
        not among `not_to`; that room is taken."""
        fitting = [
            (self._tokens[worker.identity] - need, worker.identity.worker_id, worker, need)
            for worker in self._workers
            if worker.identity not in not_to
            and not is_apart(source, worker)
            and (need := _tokens_needed(progress, worker)) <= self._tokens[worker.identity]
            and self._slots[worker.identity] >= 1
        ]
        if not fitting:
            return None
        *_, best, need = max(fitting, key=lambda fit: fit[:2])
        self._tokens[best.identity] -= need
        self._slots[best.identity] -= 1
        return best


def _takes_more(worker: WorkerView) -> bool:
    """Whoever has a queue has no room for those who would come in front of it."""
    if worker.role == "prefill" or worker.status is None or worker.peer is None:
        return False
    return not worker.status.gauges.get("waiting_requests", 0.0)


def _tokens_needed(progress: Progress, worker: WorkerView) -> float:
    assert worker.status is not None
    limit = progress.request.stop.max_tokens
    answer = min(limit, worker.status.gauges.get("expected_output_tokens", limit))
    prompt = progress.request.num_prompt_tokens
    return max(prompt + answer, progress.log.next_position + 1)
