"""Runs a workload through the scheduler alone, to its end, and tells who ran when.

Blocks of 10 tokens, unless said otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine_parts import make_scheduler, make_sequence

from segue.workers.scheduler.rehearsal import Iteration, Rehearsal
from segue.workers.scheduler.scheduler import Scheduler
from segue.workers.sequence import Sequence

GNE, MAX, STATIC = "guaranteed_no_evict", "max_utilization", "static_batch"
WHOLE = 1000


def scheduler_of(
    policy: str,
    num_blocks: int,
    slots: int = 8,
    chunk: int = WHOLE,
    reuse: bool = True,
    adapters: int | None = None,
) -> Scheduler:
    return make_scheduler(
        num_blocks,
        10,
        max_num_seqs=slots,
        max_tokens=4 * WHOLE,
        chunk=chunk,
        reuse=reuse,
        policy=policy,
        max_adapters=adapters,
    )


def request(number: int, prompt: int, answer: int, **other: object) -> Sequence:
    """No two share a prefix."""
    return make_sequence(str(number), [number + 1] * prompt, answer, **other)  # type: ignore[arg-type]


@dataclass
class Run:
    rehearsal: Rehearsal
    arrivals: dict[int, list[Sequence]]
    before_step: Callable[[int], None] = lambda _: None
    iterations: list[Iteration] = field(default_factory=list)

    def to_the_end(self) -> "Run":
        at = 0
        while not self.rehearsal.is_over or self.arrivals:
            for sequence in self.arrivals.pop(at, ()):
                self.rehearsal.scheduler.add(sequence)
            self.before_step(at)
            self.iterations.append(self.rehearsal.step())
            assert self.iterations[-1].ran, f"iteration {at}: somebody waits and nobody runs"
            scheduler = self.rehearsal.scheduler
            scheduler.cache.check_integrity(scheduler.sequences())
            at += 1
            assert at < 500
        return self

    def changes(self) -> dict[int, str]:
        """Who runs, at each iteration where that changes."""
        found: dict[int, str] = {}
        before = ""
        for at, iteration in enumerate(self.iterations):
            now = "".join(sorted(iteration.ran))
            if now != before:
                found[at] = before = now
        return found

    def start(self, name: str) -> int:
        return next(at for at, it in enumerate(self.iterations) if name in it.ran)


def run(
    scheduler: Scheduler,
    *sequences: Sequence,
    later: dict[int, list[Sequence]] | None = None,
    share_chunks: bool = True,
) -> Run:
    arrivals = {0: list(sequences), **(later or {})}
    return Run(Rehearsal(scheduler, share_chunks=share_chunks), arrivals).to_the_end()
