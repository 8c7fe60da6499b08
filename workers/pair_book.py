"""What is known of the workers that this one reads from: which pairs may be used, and why not.

A pair that failed its preflight is refused without another try until its time has come; the
pause doubles with each failure. Pure; the clock is passed in.
"""

from collections import OrderedDict
from dataclasses import dataclass

from segue.cluster.identity import WorkerIdentity
from segue.cluster.worker_status import PairReport
from segue.kvtransfer.medium import UNKNOWN_MEDIUM, Medium
from segue.kvtransfer.preflight import ProbeResult

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
MAX_PAIRS = 1024


@dataclass(frozen=True, slots=True)
class Pairing:
    """The newest preflight with one life of a source."""

    checked_at: float
    medium: Medium
    gigabytes_per_second: float | None  # None: nothing that could be trusted was read
    refusal: str = ""
    num_failures: int = 0  # in a row
    retry_at: float = 0.0

    @property
    def is_refused(self) -> bool:
        return bool(self.refusal)


class PairBook:
    def __init__(self) -> None:
        self._pairings: OrderedDict[WorkerIdentity, Pairing] = OrderedDict()

    def refusal(self, source: WorkerIdentity, now: float) -> str | None:
        """Why `source` must not be read from, nor be tried, at this moment."""
        known = self._pairings.get(source)
        if known is None or not known.is_refused or now >= known.retry_at:
            return None
        return f"{known.refusal}; tried again in {known.retry_at - now:.0f} s"

    def note_success(self, source: WorkerIdentity, result: ProbeResult, now: float) -> None:
        self._put(source, Pairing(now, result.medium, result.gigabytes_per_second))

    def note_failure(
        self, source: WorkerIdentity, refusal: str, result: ProbeResult | None, now: float
    ) -> None:
        """`result`: of a preflight that moved the right bytes in a way that is not allowed."""
        known = self._pairings.get(source)
        failures = 1 if known is None else known.num_failures + 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 30), LONGEST_PAUSE_SECONDS)
        medium = UNKNOWN_MEDIUM if result is None else result.medium
        rate = None if result is None else result.gigabytes_per_second
        self._put(source, Pairing(now, medium, rate, refusal, failures, now + pause))

    def _put(self, source: WorkerIdentity, pairing: Pairing) -> None:
        """A new life of a worker takes the place of the old one."""
        for other in [known for known in self._pairings if known.worker_id == source.worker_id]:
            del self._pairings[other]
        self._pairings[source] = pairing
        if len(self._pairings) > MAX_PAIRS:
            del self._pairings[self._least_told()]

    def _least_told(self) -> WorkerIdentity:
        """The oldest that may be used: that one may not must be known longer."""
        usable = (source for source, pairing in self._pairings.items() if not pairing.is_refused)
        return next(usable, next(iter(self._pairings)))

    def forget(self, source: WorkerIdentity) -> None:
        """It is gone."""
        self._pairings.pop(source, None)

    def reports(self, now: float) -> tuple[PairReport, ...]:
        return tuple(
            PairReport(
                source=source,
                transport=pairing.medium.kind.value,
                detail=pairing.medium.detail,
                is_measured=pairing.medium.measured,
                gigabytes_per_second=pairing.gigabytes_per_second,
                seconds_ago=now - pairing.checked_at,
                refusal=pairing.refusal,
                retry_seconds=max(0.0, pairing.retry_at - now) if pairing.is_refused else 0.0,
            )
            for source, pairing in self._pairings.items()
        )
