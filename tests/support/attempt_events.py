"""What a gateway's links hear of one attempt, kept for a test to look at."""

import asyncio
from collections.abc import Iterable

from segue.cluster.identity import AttemptId, WorkerIdentity
from segue.router.links import Event, WorkerLinks


def attempt_events(
    links: WorkerLinks, attempt: AttemptId, workers: Iterable[WorkerIdentity]
) -> asyncio.Queue[Event]:
    events: asyncio.Queue[Event] = asyncio.Queue()
    links.open_inbox(attempt, workers, events.put_nowait)
    return events
