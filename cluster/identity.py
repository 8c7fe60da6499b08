"""Who and what a message is about: workers by incarnation, and attempts at requests.

Named tuples, because they are keys that every step looks up.
"""

import secrets
from dataclasses import dataclass
from typing import NamedTuple


class WorkerIdentity(NamedTuple):
    """One life of a worker. An address is only a hint; two lives never compare equal."""

    worker_id: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.worker_id}@{self.incarnation[:8]}"


def new_incarnation() -> str:
    """A random 64-bit name for one life of a process."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker and where it was last seen (host:port)."""

    identity: WorkerIdentity
    address: str


class AttemptId(NamedTuple):
    """One try at one request. Everything a failed try left behind carries the old number."""

    request_id: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.request_id}#{self.attempt}"
