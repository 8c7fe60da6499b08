"""Counts the references that were refused because they are stale: at which use, of which kind."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from segue.cluster.errors import StaleKind, StaleReference


class Use(StrEnum):
    """What a reference was used for; a label of metrics, so the set is closed."""

    SUBMIT = "submit"
    ABORT = "abort"
    FRAMES = "frames"
    RESERVE = "reserve"
    ANNOUNCE = "announce"
    CANCEL = "cancel"
    RELEASE = "release"
    RENEW = "renew"
    REBIND = "rebind"
    MIGRATE = "migrate"
    DRAIN = "drain"
    DESCRIBE = "describe"
    TRACE = "trace"
    READ = "read"  # blocks of a peer are about to be read
    AFTER_READ = "after_read"  # they were, and the source does not vouch for them
    FREE = "free"  # blocks that were lent are taken back


class Fences:
    """Of one worker. What is refused here has done nothing."""

    def __init__(self) -> None:
        self.refusals: Counter[tuple[Use, StaleKind]] = Counter()

    def refused(self, use: Use, kind: StaleKind) -> None:
        self.refusals[use, kind] += 1

    @contextmanager
    def watch(self, use: Use) -> Iterator[None]:
        """Count a StaleReference that ends what is done inside."""
        try:
            yield
        except StaleReference as error:
            self.refused(use, error.stale)
            raise

    def counters(self) -> dict[str, float]:
        """For a WorkerStatus."""
        return {f"fence_{use}/{kind}": float(n) for (use, kind), n in self.refusals.items()}
