"""Who is in the fleet and in what state: a pure state machine over incarnations, without a clock.

It never starts or kills anything and never compares addresses. `now` is any monotonic time in
seconds and must not go back between calls.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from segue.cluster.config.control import ControlConfig
from segue.cluster.config.pool import Role
from segue.cluster.errors import StaleKind, StaleReference
from segue.cluster.fleet import (
    DeathCause,
    Ending,
    FleetView,
    PoolView,
    Registration,
    RegistrationVerdict,
    Sources,
    WorkerState,
    WorkerView,
)
from segue.cluster.identity import Peer, WorkerIdentity
from segue.cluster.silence import Listened, PoolSilence
from segue.cluster.worker_status import UsualAnswer, WorkerCondition, WorkerStatus

STALLED = "stalled"  # how the reason of such a suspicion begins
MAX_NEIGHBOURS = 32  # writers that a worker meets before an answer moves
MAX_RETIRED = 1024  # incarnations remembered as dead; a zombie older than that is merely unknown


@dataclass(slots=True)
class _Record:
    view: WorkerView
    since: float
    last_beat: float
    fingerprint: dict[str, str]
    refused_sources: frozenset[WorkerIdentity] = frozenset()


@dataclass(slots=True)
class _Past:
    """What became of the lives of one worker_id."""

    lives: int = 0
    last_end: Ending | None = None
    deaths: Counter[DeathCause] = field(default_factory=Counter)


class Registry:
    """At most one life of each worker_id is not dead; a dead life never comes back."""

    def __init__(self, control: ControlConfig, incarnation: str) -> None:
        self._control = control
        self._incarnation = incarnation
        self._records: dict[str, _Record] = {}  # the newest life of each worker_id
        self._retired: deque[WorkerIdentity] = deque(maxlen=MAX_RETIRED)
        self._past: dict[str, _Past] = {}
        self._usual_answers: dict[str, UsualAnswer] = {}  # by pool; outlives who learned it
        self._silences: dict[str, PoolSilence] = {}  # by pool
        self._sequence = 0
        self.changes = 0  # grows with every change that routing must learn of

    def expect(self, identity: WorkerIdentity, pool: str, role: Role, now: float) -> None:
        """A new life was launched and will register; an earlier one is dead from now on."""
        if identity in self._retired:
            raise StaleReference(f"{identity} is dead already", StaleKind.INCARNATION)
        self._supersede(identity, now)
        view = WorkerView(identity, pool, role, WorkerState.STARTING)
        self._record(_Record(view, now, now, {}))

    def explain(self, identity: WorkerIdentity, reason: str) -> None:
        """Say what a starting worker is waiting for."""
        record = self._living(identity)
        if record and record.view.state is WorkerState.STARTING and record.view.reason != reason:
            record.view = replace(record.view, reason=reason)
            self.changes += 1

    def register(self, registration: Registration, now: float) -> RegistrationVerdict:
        """Admit a worker that can serve, also one that was not expected (a lost registry)."""
        identity = registration.peer.identity
        if identity in self._retired:
            return RegistrationVerdict(False, f"{identity} was declared dead")
        if difference := self._difference(registration):
            if self._living(identity):
                self.bury(identity, difference, now, DeathCause.REFUSED)
            return RegistrationVerdict(False, difference)
        self._supersede(identity, now)
        known = self._living(identity)
        state = WorkerState.READY
        if known and known.view.state is WorkerState.DRAINING:
            state = WorkerState.DRAINING  # registering again does not undo a drain
        view = WorkerView(
            identity,
            registration.pool,
            registration.role,
            state,
            known.view.reason if known and state is WorkerState.DRAINING else "",
            peer=registration.peer,
            pid=registration.pid,
        )
        since = known.since if known and known.view.state is state else now
        self._record(_Record(view, since, now, registration.fingerprint))
        return RegistrationVerdict(True)

    def beat(self, identity: WorkerIdentity, status: WorkerStatus, now: float) -> bool:
        """Take a heartbeat. False: nobody of that name is registered; register (again).

        What has failed, or has been stuck for too long, is dead though it beats.
        """
        record = self._living(identity)
        if record is None or record.view.state is WorkerState.STARTING:
            return False
        record.last_beat = now
        if record.refused_sources != (refused := status.refused_sources):
            record.refused_sources = refused
            self.changes += 1
        record.view = replace(record.view, status=status)
        if (usual := status.usual_answer) is not None:
            self._usual_answers[record.view.pool] = usual
        if (ending := self._hopeless(status)) is not None:
            self.bury(identity, ending.reason, now, ending.cause)
        elif record.view.state is WorkerState.DRAINING:
            return True
        elif status.condition is WorkerCondition.STALLED:
            if not record.view.reason.startswith(STALLED):  # the first account of it stays
                self._enter(record, WorkerState.SUSPECT, f"{STALLED}: {status.cause}", now)
        elif status.condition is WorkerCondition.DRAINING:
            self._enter(record, WorkerState.DRAINING, status.cause or "draining", now)
        else:
            self._enter(record, WorkerState.READY, "", now)
        return record.view.state is not WorkerState.DEAD

    def _hopeless(self, status: WorkerStatus) -> Ending | None:
        if status.condition is WorkerCondition.FAILED:
            return Ending(DeathCause.FAILED, f"failed: {status.cause}")
        is_stalled = status.condition is WorkerCondition.STALLED
        if is_stalled and status.stuck_seconds >= self._control.wedged_after_s:
            return Ending(DeathCause.WEDGED, f"wedged: {status.cause}")
        return None

    def disconnect(self, identity: WorkerIdentity, now: float) -> None:
        """The heartbeat stream broke: no new requests until it beats again."""
        record = self._living(identity)
        if record and record.view.state is WorkerState.READY:
            self._enter(record, WorkerState.SUSPECT, "heartbeat stream broke", now)

    def drain(self, identity: WorkerIdentity, reason: str, now: float) -> None:
        record = self._living(identity)
        if record and record.view.state in (WorkerState.READY, WorkerState.SUSPECT):
            self._enter(record, WorkerState.DRAINING, reason, now)

    def bury(
        self,
        identity: WorkerIdentity,
        reason: str,
        now: float,
        cause: DeathCause = DeathCause.EXITED,
    ) -> None:
        """That life is over; anything it still says is refused."""
        record = self._living(identity)
        if record:
            past = self._past[identity.worker_id]
            past.deaths[cause] += 1
            past.last_end = Ending(cause, reason)
            self._enter(record, WorkerState.DEAD, reason, now)
            self._retired.append(identity)
        elif identity not in self._retired and not self.knows(identity):
            self._retired.append(identity)

    def forget(self, worker_id: str) -> None:
        """Drop a dead worker that will not be replaced."""
        record = self._records.get(worker_id)
        if record and record.view.state is WorkerState.DEAD:
            del self._records[worker_id], self._past[worker_id]
            self.changes += 1

    def tick(self, now: float) -> None:
        """Judge silence. Starting workers are not judged: whoever launched them is."""
        sizes: Counter[str] = Counter()
        pools: dict[str, list[Listened]] = {}
        for record in self._records.values():
            view, silent_s = record.view, now - record.last_beat
            sizes[view.pool] += 1
            if view.state in (WorkerState.STARTING, WorkerState.DEAD):
                continue
            pools.setdefault(view.pool, []).append(Listened(view.identity, silent_s))
            if silent_s >= self._control.suspect_after_s and view.state is WorkerState.READY:
                self._enter(record, WorkerState.SUSPECT, f"silent for {silent_s:.1f} s", now)
        for pool, listened in pools.items():
            silence = self._silences.setdefault(pool, PoolSilence(self._control))
            for late in silence.condemned(listened, sizes[pool], now):
                reason = f"silent for {late.silent_s:.1f} s"
                self.bury(late.identity, reason, now, DeathCause.SILENT)

    def excuse(self, seconds: float) -> None:
        """We did not listen for so long: that nobody was heard meanwhile means nothing."""
        for record in self._records.values():
            record.last_beat += seconds

    def knows(self, identity: WorkerIdentity) -> bool:
        """Whether that very life is on record, dead or alive."""
        record = self._records.get(identity.worker_id)
        return record is not None and record.view.identity == identity

    def wants(self, identity: WorkerIdentity) -> bool:
        """Whether that very life may go on: it is on record, and not dead."""
        return self._living(identity) is not None

    def newest(self, worker_id: str) -> WorkerView | None:
        """The newest life of a worker, dead or alive."""
        record = self._records.get(worker_id)
        return record.view if record else None

    def last_end(self, worker_id: str) -> Ending | None:
        """How the newest of a worker's ended lives ended."""
        past = self._past.get(worker_id)
        return past.last_end if past else None

    def _shown(self, record: _Record, now: float) -> WorkerView:
        past = self._past[record.view.identity.worker_id]
        return replace(
            record.view,
            state_seconds=max(0.0, now - record.since),
            restarts=past.lives - 1,
            last_end=past.last_end.reason if past.last_end else "",
            deaths=dict(past.deaths),
        )

    def sources_for(self, identity: WorkerIdentity) -> Sources:
        """Whom a worker should meet before it must read from them.

        Of those that write answers these are the next ones in the circle of all: in a pool of any
        size each worker meets few, and is met by few.
        """
        reader = self._living(identity)
        if reader is None or reader.view.role == "prefill":
            return Sources()
        prompts = self._ready_peers("prefill") if reader.view.role == "decode" else []
        writers = [p for p in self._ready_peers("decode", "both") if p.identity != identity]
        place = sum(p.identity.worker_id < identity.worker_id for p in writers)
        circle = writers[place:] + writers[:place]
        return Sources(tuple(prompts), tuple(circle[:MAX_NEIGHBOURS]))

    def _ready_peers(self, *roles: Role) -> list[Peer]:
        return [
            record.view.peer
            for _, record in sorted(self._records.items())
            if record.view.peer is not None
            and record.view.role in roles
            and record.view.state is WorkerState.READY
        ]

    def usual_answer(self, pool: str) -> UsualAnswer | None:
        """What some worker of the pool was the last to learn, for those that begin."""
        return self._usual_answers.get(pool)

    def snapshot(self, pools: Iterable[PoolView], now: float) -> FleetView:
        self._sequence += 1
        workers = tuple(self._shown(record, now) for _, record in sorted(self._records.items()))
        return FleetView(self._sequence, self._incarnation, workers, tuple(pools))

    def _living(self, identity: WorkerIdentity) -> _Record | None:
        record = self._records.get(identity.worker_id)
        if record is None or record.view.identity != identity:
            return None
        return None if record.view.state is WorkerState.DEAD else record

    def _supersede(self, identity: WorkerIdentity, now: float) -> None:
        old = self._records.get(identity.worker_id)
        if old and old.view.identity != identity and old.view.state is not WorkerState.DEAD:
            self.bury(old.view.identity, "another life took its place", now, DeathCause.REPLACED)

    def _record(self, record: _Record) -> None:
        identity = record.view.identity
        if not self.knows(identity):
            self._past.setdefault(identity.worker_id, _Past()).lives += 1
        self._records[identity.worker_id] = record
        self.changes += 1

    def _difference(self, registration: Registration) -> str:
        """Name what sets a worker apart from the fleet: all must be able to share KV blocks."""
        for worker_id, record in sorted(self._records.items()):
            registered = record.view.state not in (WorkerState.STARTING, WorkerState.DEAD)
            if not registered or worker_id == registration.peer.identity.worker_id:
                continue
            theirs, fleet = registration.fingerprint, record.fingerprint
            for name in sorted(theirs.keys() | fleet.keys()):
                if theirs.get(name) != fleet.get(name):
                    return (
                        f"refused: {name} is {theirs.get(name)}, the fleet's is {fleet.get(name)}"
                    )
            return ""
        return ""

    def _enter(self, record: _Record, state: WorkerState, reason: str, now: float) -> None:
        if record.view.state is not state:
            record.since = now
        elif record.view.reason == reason:
            return
        record.view = replace(record.view, state=state, reason=reason)
        self.changes += 1
