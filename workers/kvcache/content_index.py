"""What the published blocks hold: the only code that makes content findable, moves it between
device and host, or forgets it.

Every node of the tree has its KV in one place: a device block or a host slot. Forgetting a node
forgets all below it, because their KV is useless without it.
"""

from collections.abc import Sequence

from segue.cluster.block_hash import WORD_BYTES
from segue.workers.kvcache.block_pool import BlockPool, BlockState, OutOfBlocks
from segue.workers.kvcache.copy_queue import CopyQueue
from segue.workers.kvcache.events import EventLog, Snapshot, StoredBlock, Tier
from segue.workers.kvcache.host_tier import HostTier
from segue.workers.kvcache.node import Node
from segue.workers.kvcache.policy import ReusePolicy
from segue.workers.kvcache.radix_tree import RadixTree
from segue.workers.kvcache.statistics import CacheStatistics


class ContentIndex:
    def __init__(
        self, pool: BlockPool, block_size: int, policy: ReusePolicy, statistics: CacheStatistics
    ) -> None:
        self.tree = RadixTree(block_size)
        self._piece_bytes = block_size * WORD_BYTES
        self.host = HostTier(policy.num_host_slots)
        self.copies = CopyQueue(pool)
        self.events = EventLog(policy.event_capacity)
        self._pool = pool
        self._min_priority = policy.offload_min_priority
        self._statistics = statistics
        self._nodes: list[Node | None] = [None] * pool.num_blocks

    # -- blocks for new content --------------------------------------------------------------

    def allocate(self, count: int, *, landing: bool = False) -> list[int]:
        """Take `count` blocks: free ones, then those whose content goes first."""
        pool = self._pool
        if pool.num_free < count:
            self._make_room(count)
        self._statistics.allocated += count
        return pool.allocate(count, landing=landing)

    def _make_room(self, count: int) -> None:
        """Free idle blocks until `count` are free: content moves to the host or is forgotten."""
        pool, nodes, is_told = self._pool, self._nodes, self.events.is_on
        detach_leaf = self.tree.detach_leaf
        if count > pool.num_available:
            raise OutOfBlocks(f"{count} blocks wanted, {pool.num_available} available")
        while (missing := count - pool.num_free) > 0:
            if self.host.num_slots and self._offload_victim():
                continue
            victims = pool.reclaim(1 if self.host.num_slots else missing)
            others: list[Node] = []
            for block_id in victims:
                node = nodes[block_id]
                if node is None:
                    raise ValueError(f"block {block_id} was cached without content")
                nodes[block_id] = node.block_id = None
                if is_told or node.below is not None:
                    others.append(node)
                else:
                    detach_leaf(node)
            self._statistics.forgotten += len(victims) - len(others)
            for node in others:
                if node.parent is not None:  # else it went with another one
                    self.forget(node)

    def _offload_victim(self) -> bool:
        victim = self._pool.victim()
        node = None if victim is None else self._nodes[victim]
        return node is not None and self._offload(node)

    # -- content -----------------------------------------------------------------------------

    def is_idle(self, node: Node) -> bool:
        """Its KV is on the device and nobody uses it, so that its block may be taken over."""
        block_id = node.block_id
        return block_id is not None and self._pool.state(block_id) is BlockState.CACHED

    def store(self, parent: Node, words: bytes, block_ids: Sequence[int], start: int) -> Node:
        """Make blocks findable, one below the other: `block_ids[start:]`, as far as they hold
        `words`. A last one that is not whole is left out if its tokens are findable already.

        Content that is on the device already stays where it is, and the block unpublished;
        content on the host comes to lie in the block. Returns the last piece's node.
        """
        size, pool = self._piece_bytes, self._pool
        fresh: list[tuple[Node, Node]] = []
        for first in range(start * size, len(words), size):
            piece = words[first : first + size]
            is_full = len(piece) == size
            if not is_full and not parent.is_leaf and self._covers(parent, piece):
                break
            node = parent.put(piece, is_full)
            if node.block_id is None:
                block_id = block_ids[first // size]
                pool.know_content(block_id)
                node.block_id = block_id
                self._nodes[block_id] = node
                if node.slot is not None:
                    self.host.drop(node)
                    self._tell_update(node)
                elif self.events.is_on:
                    fresh.append((parent, node))
            parent = node
        if fresh:
            self._tell_stored(fresh)
        return parent

    def _covers(self, parent: Node, piece: bytes) -> bool:
        """All tokens of the piece are the first ones of some child."""
        found = self.tree.best_partial(parent, piece, lambda node: True)
        return found is not None and found[1] * WORD_BYTES == len(piece)

    def claim(self, node: Node) -> None:
        """A sequence holds the content from now on; on the host it waits for `onboard`."""
        if node.block_id is not None:
            self._pool.share(node.block_id)
        elif node.slot is not None:
            self.host.claim(node.slot)

    def onboard(self, node: Node, block_id: int) -> None:
        """Bring a claimed node's content from the host into a block that was allocated for it."""
        slot = node.slot
        if slot is None:
            raise ValueError("the node is not on the host")
        self.copies.onboard(slot, block_id)
        self._pool.retain(block_id, *self.host.retention(slot))
        self.host.drop(node)
        self._place(node, block_id)
        self._tell_update(node)
        self._statistics.onboarded += 1

    def copy_part(self, node: Node, block_id: int, num_tokens: int) -> None:
        """Bring leading tokens of a claimed node into a block of one's own, and unclaim it."""
        if node.block_id is not None:
            self.copies.copy(node.block_id, block_id, num_tokens)
            self._inherit(block_id, node.block_id)
            self._pool.release((node.block_id,))
            self._statistics.copied += 1
        elif node.slot is not None:
            self.copies.onboard(node.slot, block_id)
            self._pool.retain(block_id, *self.host.retention(node.slot))
            self.host.unclaim(node.slot)
            self._statistics.onboarded += 1

    def take_over(self, node: Node) -> int:
        """Own an idle node's block together with what it holds, which is no longer findable, nor
        is what is below it."""
        block_id = node.block_id
        if block_id is None or not self.is_idle(node):
            raise ValueError("only an idle block can be taken over")
        self._pool.share(block_id)
        self.forget(node)
        return block_id

    def retain(self, node: Node, priority: int | None, duration: float | None) -> None:
        """A holder says how long the content is worth keeping. `priority` None: as before."""
        block_id = node.block_id
        if block_id is None:
            raise ValueError("only content on the device is retained")
        before = self._pool.priority(block_id)
        after = before if priority is None else priority
        self._pool.retain(block_id, after, duration)
        if after != before:
            self._tell_update(node)

    def forget(self, node: Node) -> None:
        """Make a node and all below it unfindable; their blocks are free once nobody holds them."""
        removed = self.tree.detach(node)
        for gone in removed:
            if gone.block_id is not None:
                self._vacate(gone)
            elif gone.slot is not None:
                self.host.drop(gone)
        if self.events.is_on:
            keys = [gone.key for gone in removed if gone.key is not None]
            if keys:
                self.events.removed(keys)
        self._statistics.forgotten += len(removed)

    def forget_all(self) -> None:
        for node in list(self.tree.nodes()):
            if node.parent is not None:
                self.forget(node)

    def expire(self, now: float) -> None:
        """Let time pass: content whose time is over falls to the default priority."""
        for block_id in self._pool.expire(now):
            node = self._nodes[block_id]
            if node is not None:
                self._tell_update(node)
        for node in self.host.expire(now):
            self._tell_update(node)

    def snapshot(self) -> Snapshot:
        found: list[StoredBlock] = []
        for node in self.tree.nodes():
            if node.key is not None and node.parent is not None and node.parent.key is not None:
                found.append(StoredBlock(node.key, node.parent.key, *self._place_of(node)))
        return Snapshot(self.events.last_number, tuple(found))

    # -- moves -------------------------------------------------------------------------------

    def _offload(self, node: Node) -> bool:
        """Move an idle node's content to the host, which frees its block. False: it stays."""
        block_id = node.block_id
        if block_id is None:
            return False
        if self._pool.priority(block_id) < self._min_priority:
            return False
        if self.host.free_slot() is None:
            loser = self.host.victim()
            if loser is None:
                return False
            self.forget(loser)
            if node.block_id is None:  # it lay below the loser
                return True
        priority, duration = self._pool.priority(block_id), self._pool.duration(block_id)
        slot = self.host.store(node, priority, duration)
        self.copies.offload(block_id, slot)
        self._vacate(node)
        self._tell_update(node)
        self._statistics.offloaded += 1
        return True

    def _place(self, node: Node, block_id: int) -> None:
        node.block_id = block_id
        self._nodes[block_id] = node
        self._pool.know_content(block_id)

    def _vacate(self, node: Node) -> None:
        block_id, node.block_id = node.block_id, None
        if block_id is not None:
            self._nodes[block_id] = None
            self._pool.drop_content(block_id)

    def _inherit(self, block_id: int, source: int) -> None:
        self._pool.retain(block_id, self._pool.priority(source), self._pool.duration(source))

    def _place_of(self, node: Node) -> tuple[Tier, int]:
        if node.block_id is not None:
            return Tier.DEVICE, self._pool.priority(node.block_id)
        if node.slot is None:
            raise ValueError("the node has no place")
        return Tier.HOST, self.host.retention(node.slot)[0]

    def _tell_stored(self, fresh: list[tuple[Node, Node]]) -> None:
        """Of each new node behind its parent; partial ones have no key and are not told of."""
        stored = [
            StoredBlock(node.key, parent.key, *self._place_of(node))
            for parent, node in fresh
            if node.key is not None and parent.key is not None
        ]
        if stored:
            self.events.stored(stored)

    def _tell_update(self, node: Node) -> None:
        if node.key is not None and self.events.is_on:
            self.events.updated(node.key, *self._place_of(node))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every node has one place, and every place its node."""
        self.tree.check_integrity()
        self.host.check_integrity()
        nodes = list(self.tree.nodes())
        for node in nodes:
            assert (node.block_id is None) != (node.slot is None)
            assert node.block_id is None or self._nodes[node.block_id] is node
        held = [i for i in range(self._pool.num_blocks) if self._nodes[i] is not None]
        assert held == [i for i in range(self._pool.num_blocks) if self._pool.has_content(i)]
        assert len(held) + self.host.num_used == len(nodes)
