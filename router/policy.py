"""Chooses who reads a prompt and who writes the answer. Pure: no clock, no I/O.

Workers that the controller does not hear, but this gateway is connected to, are used only before a
worse rung.

The ladder, best rung first: a prefill and a decode worker; else whoever is left does both, if the
named ladder has that rung. A colocated pool (role `both`) competes with pairs by load. A request
that failed on a worker goes down the ladder before it goes back there. Two workers whose preflight
failed are never paired.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from segue.cluster.config.gateway import LadderName
from segue.cluster.config.pool import Role
from segue.cluster.fleet import WorkerState, WorkerView
from segue.cluster.identity import WorkerIdentity


class Rung(StrEnum):
    """What an attempt is counted as; a label of metrics."""

    DISAGGREGATED = "disaggregated"
    OTHER_PAIR = "other_pair"  # the same after a failed attempt
    COLOCATED = "colocated"  # a worker whose role is to do both
    PREFILL_ON_DECODE = "prefill_on_decode"  # no prefill worker: the decode worker reads too
    DECODE_ON_PREFILL = "decode_on_prefill"  # no decode worker: the prefill worker goes on
    REFUSED = "refused"  # the end of the ladder: 503, or an error in a stream that has begun


# Which workers that are made for one half may do both.
LADDERS: dict[LadderName, frozenset[Rung]] = {
    "full": frozenset({Rung.PREFILL_ON_DECODE, Rung.DECODE_ON_PREFILL}),
    "no_local_prefill": frozenset({Rung.DECODE_ON_PREFILL}),
    "no_local_decode": frozenset({Rung.PREFILL_ON_DECODE}),
    "pairs_only": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Binding:
    """`decode` is None if `prefill` also writes the answer."""

    prefill: WorkerView
    decode: WorkerView | None
    rung: Rung

    def drawer(self, *, first: bool) -> WorkerView:
        """Who draws the first token behind a prompt, or the others."""
        return self.prefill if first or self.decode is None else self.decode

    @property
    def workers(self) -> tuple[WorkerView, ...]:
        return (self.prefill,) if self.decode is None else (self.prefill, self.decode)

    @property
    def is_heard(self) -> bool:
        """The controller hears all of them."""
        return all(map(_is_heard, self.workers))


@dataclass(slots=True)
class Load:
    """What this gateway has given to whom and not seen finished; reserved when it chooses."""

    context_tokens: Counter[WorkerIdentity] = field(default_factory=Counter)
    answers: Counter[WorkerIdentity] = field(default_factory=Counter)

    def begin(self, binding: Binding, num_tokens: int) -> None:
        self.context_tokens[binding.prefill.identity] += num_tokens
        self.answers[(binding.decode or binding.prefill).identity] += 1

    def end_context(self, binding: Binding, num_tokens: int) -> None:
        _subtract(self.context_tokens, binding.prefill.identity, num_tokens)

    def end_answer(self, binding: Binding) -> None:
        _subtract(self.answers, (binding.decode or binding.prefill).identity, 1)

    def begin_move(self, target: WorkerIdentity) -> None:
        self.answers[target] += 1

    def give_up_move(self, target: WorkerIdentity) -> None:
        _subtract(self.answers, target, 1)


def _subtract(counter: Counter[WorkerIdentity], identity: WorkerIdentity, amount: int) -> None:
    counter[identity] -= amount
    if not counter[identity]:
        del counter[identity]


def _is_heard(worker: WorkerView) -> bool:
    return worker.state is WorkerState.READY


def choose(
    usable: Iterable[WorkerView],
    load: Load,
    avoid: Collection[WorkerIdentity] = (),
    ladder: LadderName = "full",
) -> Binding | None:
    """The best binding among `usable` workers; those in `avoid` only if nobody else will do."""
    workers = sorted(usable, key=lambda worker: worker.identity.worker_id)
    preferred = [worker for worker in workers if worker.identity not in avoid]
    return _first(preferred, load, LADDERS[ladder]) or _first(workers, load, LADDERS[ladder])


def _first(workers: list[WorkerView], load: Load, rungs: Collection[Rung]) -> Binding | None:
    heard = [worker for worker in workers if _is_heard(worker)]
    if len(heard) == len(workers):
        return _best(workers, load, rungs)
    return (
        _best(heard, load, ())
        or _best(workers, load, ())
        or _best(heard, load, rungs)
        or _best(workers, load, rungs)
    )


def refusal(ready: Collection[WorkerView], ladder: LadderName) -> str:
    """Why `choose` finds nobody, for the client."""
    if not ready:
        return "no worker is ready to serve this model"
    roles = {worker.role for worker in ready}
    missing = {"prefill": "no prefill", "decode": "no decode"}
    lacks = [words for role, words in missing.items() if role not in roles]
    why = f"{' and '.join(lacks)} worker is ready" if lacks else "no two workers can exchange KV"
    return f"{why}, and gateway.recovery.ladder is {ladder}: the others do not stand in"


def is_apart(prefill: WorkerView, decode: WorkerView) -> bool:
    """Whether `decode` refuses to read KV from `prefill`: their preflight failed."""
    return decode.status is not None and prefill.identity in decode.status.refused_sources


def choose_writer(
    ready: Iterable[WorkerView],
    load: Load,
    source: WorkerView,
    not_to: Collection[WorkerIdentity] = (),
) -> WorkerView | None:
    """Where an answer of `source` may move to: whoever can read from it and writes the fewest."""
    writers = [
        worker
        for worker in ready
        if worker.role != "prefill"
        and worker.identity != source.identity
        and worker.identity not in not_to
        and not is_apart(source, worker)
    ]
    return min(
        writers, key=lambda w: (load.answers[w.identity], w.identity.worker_id), default=None
    )


def _best(workers: list[WorkerView], load: Load, rungs: Collection[Rung]) -> Binding | None:
    def by_context(worker: WorkerView) -> tuple[bool, int, int]:
        me = worker.identity
        return not _is_heard(worker), load.context_tokens[me], load.answers[me]

    def by_answers(worker: WorkerView) -> tuple[bool, int, int]:
        me = worker.identity
        return not _is_heard(worker), load.answers[me], load.context_tokens[me]

    def of(role: Role) -> list[WorkerView]:
        return [worker for worker in workers if worker.role == role]

    both = min(of("both"), key=by_answers, default=None)
    prefill = min(of("prefill"), key=by_context, default=None)
    decode = min(of("decode"), key=by_answers, default=None)
    if prefill is not None and decode is not None and is_apart(prefill, decode):
        readers = sorted(of("prefill"), key=by_context)
        couples = (  # one after another: nearly always the first or second will do
            (reader, writer)
            for writer in sorted(of("decode"), key=by_answers)
            for reader in readers
            if not is_apart(reader, writer)
        )
        prefill, decode = next(couples, (None, decode))
    if prefill is not None and decode is not None:
        if both is None or by_answers(decode) <= by_answers(both):
            return Binding(prefill, decode, Rung.DISAGGREGATED)
    if both is not None:
        return Binding(both, None, Rung.COLOCATED)
    if decode is not None and Rung.PREFILL_ON_DECODE in rungs:
        return Binding(decode, None, Rung.PREFILL_ON_DECODE)
    if prefill is not None and Rung.DECODE_ON_PREFILL in rungs:
        return Binding(prefill, None, Rung.DECODE_ON_PREFILL)
    return None
