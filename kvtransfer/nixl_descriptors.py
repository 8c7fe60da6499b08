"""How memory is described to NIXL: whole blocks once for each side of a pair, the rest each time.

A list of blocks costs some 100 bytes a block of the peer; describing blocks anew costs every read
time that grows with their number (`make bench-transfer`: describe, name).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from segue.cluster.errors import TransferError
from segue.kvtransfer.nixl_metadata import RegionMetadata
from segue.kvtransfer.transport import ByteRange

logger = logging.getLogger(__name__)

MAX_UNITS = 2**20  # of a longer list the reads are described one by one
OURSELVES = "NIXL_INIT_AGENT"


@dataclass(frozen=True, slots=True)
class UnitList:
    """`handle`: NIXL's, of units 0, 1, ... of one region."""

    unit_bytes: int
    num_units: int
    handle: Any

    def indices(self, ranges: Sequence[ByteRange]) -> list[int] | None:
        """The units that make up `ranges`, in order; None unless they are made up of units."""
        size, found = self.unit_bytes, list[int]()
        for part in ranges:
            first, offset = divmod(part.offset, size)
            count, rest = divmod(part.length, size)
            if offset or rest or first + count > self.num_units:
                return None
            if count == 1:
                found.append(first)
            else:
                found.extend(range(first, first + count))
        return found


def list_units(
    agent: Any, agent_name: str, region: RegionMetadata, unit_bytes: int | None
) -> UnitList | None:
    """None: there is nothing to list, or NIXL takes no such list; then describe each read."""
    num_units = 0 if unit_bytes is None else region.num_bytes // unit_bytes
    if unit_bytes is None or not 0 < num_units <= MAX_UNITS:
        return None
    kind, device_id = memory_kind(region.device)
    # One row: count units of unit_bytes, each unit_bytes after the one before.
    row = [[region.address, unit_bytes, device_id, unit_bytes, num_units]]
    try:
        units = np.array(row, dtype=np.uint64)
        handle = agent.prep_xfer_dlist(agent_name, units, kind, ["UCX"])
    except Exception as error:
        logger.info("NIXL takes no list of %d blocks: %s", num_units, error)
        return None
    return UnitList(unit_bytes, num_units, handle)


def describe(agent: Any, region: RegionMetadata, ranges: Sequence[ByteRange]) -> Any:
    """NIXL's own list of these ranges."""
    kind, device_id = memory_kind(region.device)
    base = region.address
    return agent.get_xfer_descs([(base + r.offset, r.length, device_id) for r in ranges], kind)


def memory_kind(device: str) -> tuple[str, int]:
    """NIXL's words for "cpu" and "cuda:N". Raises TransferError."""
    if device == "cpu":
        return "DRAM", 0
    prefix, _, number = device.partition(":")
    if prefix == "cuda" and number.isdecimal():
        return "VRAM", int(number)
    raise TransferError(f"unknown device {device!r}; known are 'cpu' and 'cuda:N'")
