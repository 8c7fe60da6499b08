"""What carries the bytes of a pair of workers, and how sure that is. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class MediumKind(StrEnum):
    """The names that `transfer.require_transport` knows, and two that no requirement accepts."""

    NVLINK = "nvlink"  # GPU to GPU without a network: CUDA IPC
    SHM = "shm"  # memory of another process on the same machine
    RDMA = "rdma"
    TCP = "tcp"
    LOOPBACK = "loopback"  # within one process: tests
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Medium:
    """`measured`: the transport itself told so; else it is the likeliest of several."""

    kind: MediumKind
    detail: str = ""  # in the transport's own words, e.g. "cma/memory"
    measured: bool = False


UNKNOWN_MEDIUM = Medium(MediumKind.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Lane:
    """One of the ways that UCX keeps open to a peer; `uses` as UCX says them ("rma_bw#0")."""

    transport: str
    device: str
    uses: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.transport}/{self.device}"

    def serves(self, use: str) -> bool:
        return any(word.partition("#")[0] == use for word in self.uses)


# Best first: where lanes of several kinds carry reads, UCX prefers them in this order.
_RANKING = (MediumKind.NVLINK, MediumKind.SHM, MediumKind.RDMA, MediumKind.TCP)
_HOST_MEMORY_ONLY = ("sysv", "posix", "cma", "knem", "xpmem", "self")
_KINDS = {
    "cuda_ipc": MediumKind.NVLINK,
    **dict.fromkeys(_HOST_MEMORY_ONLY, MediumKind.SHM),
    "tcp": MediumKind.TCP,
}
_RDMA_PREFIXES = ("rc", "dc", "ud", "srd", "gga", "ib")


def medium_of(lanes: Sequence[Lane], device: str) -> Medium:
    """What carries reads into and out of memory of `device` ("cpu" or "cuda:N")."""
    carriers = _carriers(lanes, device)
    kinds = [kind for kind in _RANKING if any(_kind(lane) is kind for lane in carriers)]
    if not kinds:
        return UNKNOWN_MEDIUM
    best = [lane.name for lane in carriers if _kind(lane) is kinds[0]]
    return Medium(kinds[0], " ".join(dict.fromkeys(best)), measured=len(kinds) == 1)


def _carriers(lanes: Sequence[Lane], device: str) -> list[Lane]:
    """UCX reads through lanes for RMA; without one it sends the bytes in active messages."""
    for uses in (("rma_bw", "rma"), ("am",)):
        found = [
            lane
            for lane in lanes
            if any(map(lane.serves, uses))
            and not (device != "cpu" and lane.transport in _HOST_MEMORY_ONLY)
        ]
        if any(_kind(lane) is not None for lane in found):
            return found
    return []


def _kind(lane: Lane) -> MediumKind | None:
    """None for what moves bytes within one machine's own devices only, as cuda_copy does."""
    if lane.transport in _KINDS:
        return _KINDS[lane.transport]
    prefix = lane.transport.partition("_")[0]
    return MediumKind.RDMA if prefix in _RDMA_PREFIXES else None
