"""Leases are renewed source by source: trouble with one of them is no other's."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from engine_parts import make_sequence

from segue.cluster.identity import Peer, WorkerIdentity
from segue.workers.landing import Landing
from segue.workers.lease_renewal import LeaseRenewal
from segue.workers.peers import Peers
from segue.workers.sequence import Sequence as TokenSequence


def source(number: int) -> Peer:
    return Peer(WorkerIdentity(f"prefill-{number}", "aa"), f"p{number}:1")


@dataclass(eq=False)
class _Landing:
    source: Peer
    sequence: TokenSequence
    has_credit: bool = True
    releasing: bool = False
    renewed_at: float = 0.0


@dataclass
class _Peers:
    """All sources answer; the one in `broken` with a defect, the one in `forgetful` knows none."""

    broken: Peer
    forgetful: Peer
    renewed: Counter[Peer] = field(default_factory=Counter)
    identity: WorkerIdentity = WorkerIdentity("decode-0", "bb")

    def client(self, peer: Peer) -> Any:
        outer = self

        class Client:
            async def renew(self, holder: object, ids: Sequence[str], *, deadline_s: float) -> Any:
                outer.renewed[peer] += 1
                if peer == outer.broken:
                    raise ZeroDivisionError("a defect of this call")
                return set(ids) if peer == outer.forgetful else set()

        return Client()


async def test_a_defect_with_one_source_costs_no_lease_of_another() -> None:
    landings = [_Landing(source(n), make_sequence(f"r{n}", [1], 2)) for n in range(3)]
    peers = _Peers(broken=source(0), forgetful=source(1))
    lost: list[Landing] = []

    def give_up(landing: Landing, reason: str) -> None:
        lost.append(landing)
        raise ZeroDivisionError("a defect of whoever is told")

    renewal = LeaseRenewal(
        cast(Peers, peers),
        0.03,
        asyncio.get_running_loop().time,
        lambda: cast(list[Landing], landings),
        give_up,
    )
    renewal.start()
    async with asyncio.timeout(5):
        while min(peers.renewed[source(n)] for n in range(3)) < 3:
            await asyncio.sleep(0.005)
    assert landings[2].renewed_at > 0 and cast(Any, lost[0]) is landings[1]
    await renewal.stop()
