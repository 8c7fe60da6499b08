"""Which node's KV lies in which slot of host memory, and which slot is given up next."""

from collections import deque
from dataclasses import dataclass

from segue.cluster.retention import DEFAULT_PRIORITY
from segue.workers.kvcache.eviction import EvictionQueue
from segue.workers.kvcache.node import Node


@dataclass(slots=True)
class _Slot:
    node: Node
    priority: int
    duration: float | None


class HostTier:
    """A slot is free, or holds a node's block. One that is claimed is not a victim."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 0:
            raise ValueError(f"num_slots must be at least 0, got {num_slots}")
        self.num_slots = num_slots
        self.now = 0.0
        self._free: deque[int] = deque(range(num_slots))
        self._used: dict[int, _Slot] = {}
        self._idle = EvictionQueue()

    @property
    def num_used(self) -> int:
        return len(self._used)

    def free_slot(self) -> int | None:
        """The next free slot; it stays free until `store`."""
        return self._free[0] if self._free else None

    def victim(self) -> Node | None:
        """The node whose slot is given up next."""
        slot = self._idle.victim()
        return None if slot is None else self._used[slot].node

    def store(self, node: Node, priority: int, duration: float | None) -> int:
        """Give the node the next free slot; it is idle there."""
        slot = self._free.popleft()
        self._used[slot] = _Slot(node, priority, duration)
        node.slot = slot
        self.unclaim(slot)
        return slot

    def retention(self, slot: int) -> tuple[int, float | None]:
        """The priority and the duration that the content came with."""
        used = self._used[slot]
        return used.priority, used.duration

    def claim(self, slot: int) -> None:
        """Keep the content until `unclaim` or `drop`."""
        self._idle.remove(slot)

    def unclaim(self, slot: int) -> None:
        used = self._used[slot]
        expires_at = None if used.duration is None else self.now + used.duration
        self._idle.add(slot, used.priority, expires_at)

    def drop(self, node: Node) -> None:
        """The node's content is not here any more."""
        slot, node.slot = node.slot, None
        if slot is None:
            raise ValueError("the node has no slot")
        if slot in self._idle:
            self._idle.remove(slot)
        del self._used[slot]
        self._free.append(slot)

    def expire(self, now: float) -> list[Node]:
        """Let time pass; returns the nodes that fell to the default priority."""
        self.now = now
        moved = [self._used[slot] for slot in self._idle.expire(now)]
        for used in moved:
            used.priority, used.duration = DEFAULT_PRIORITY, None
        return [used.node for used in moved]

    def check_integrity(self) -> None:
        """Raise AssertionError unless each slot is free or used, once; claims are over."""
        assert len(self._free) + len(self._used) == self.num_slots
        assert set(self._free) | self._used.keys() == set(range(self.num_slots))
        assert set(self._idle) == self._used.keys()
        assert all(used.node.slot == slot for slot, used in self._used.items())
        self._idle.check_integrity()
