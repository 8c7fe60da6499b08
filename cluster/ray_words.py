"""What Ray is told and tells, in our words: names of actors, how they ended, what they lack."""

import re
from collections.abc import Mapping

from segue.cluster.identity import WorkerIdentity

WORKER_PREFIX = "segue-worker-"


def actor_name(identity: WorkerIdentity) -> str:
    return f"{WORKER_PREFIX}{identity.worker_id}-{identity.incarnation}"


def identity_of(name: str) -> WorkerIdentity:
    worker_id, _, incarnation = name.removeprefix(WORKER_PREFIX).rpartition("-")
    return WorkerIdentity(worker_id, incarnation)


def shortage(
    needs: Mapping[str, float], total: Mapping[str, float], free: Mapping[str, float]
) -> str:
    """What of its needs an actor waits for in a cluster that has `total`; empty: for nothing."""
    absent = {name: n for name, n in needs.items() if total.get(name, 0.0) < n}
    taken = {name: n for name, n in needs.items() if free.get(name, 0.0) < n}
    if absent:
        return f"waiting for a node with {_listed(absent)}"
    return f"waiting for resources {_listed(taken)}" if taken else ""


def _listed(amounts: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in amounts.items()) + "}"


def obituary(error: Exception) -> str:
    """Ray's account of an actor's end, in one line."""
    text = " ".join(str(error).split())
    if "Worker unexpectedly exits" in text:
        return "its process died unexpectedly (killed, out of memory or crashed)"
    told = re.search(r"Worker exit detail: (.+?\.)(?: |$)", text)
    return told.group(1) if told else text[:300]
