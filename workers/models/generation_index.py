"""The index tensors of a generation batch, kept from step to step and changed where it changed.

As long as nobody joins or leaves, a step adds one position to each sequence, and a block to those
that begin one. Everything is built anew when the members change, when a sequence outgrows what
its group is padded to (once a block at most), and when a step was run without this index.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from segue.kernels.paged_attention import (
    GenerationGroup,
    append_block,
    continue_generations,
    plan_generations,
)
from segue.kernels.paged_cache import CacheShape
from segue.workers.generation_batch import GenerationBatch, Ids


@dataclass(slots=True)
class _Group:
    rows: Ids
    members: torch.Tensor  # the same rows
    blocks: torch.Tensor  # (rows, width), padded with each one's first block
    plan: GenerationGroup


class GenerationIndex:
    """For one model and one cache; given the batch of one engine, step after step."""

    def __init__(self, shape: CacheShape, num_heads: int) -> None:
        self._shape = shape
        self._num_heads = num_heads
        self._version: int | None = None
        self._step = 0
        self._groups: list[_Group] = []
        self._places: dict[int, tuple[_Group, int]] = {}  # of each row: its group, its place there

    def groups(self, batch: GenerationBatch, first_token: int) -> tuple[GenerationGroup, ...]:
        """Row n of the batch is token `first_token + n` of the step."""
        continues = self._continues(batch)
        self._version = None  # should what follows raise, nothing is built upon it
        if not continues:
            self._build(batch)
        elif batch.step != self._step:
            self._go_on(batch)
        self._version, self._step = batch.version, batch.step
        return tuple(replace(g.plan, tokens=g.members + first_token) for g in self._groups)

    def _continues(self, batch: GenerationBatch) -> bool:
        if batch.version != self._version or batch.step - self._step not in (0, 1):
            return False
        return all(
            int(batch.positions[group.rows].max()) < group.plan.padded_length
            for group in self._groups
        )

    def _go_on(self, batch: GenerationBatch) -> None:
        for row in batch.grown:
            group, place = self._places[row]
            first = int(batch.positions[row]) // self._shape.block_size
            last = min(int(batch.num_blocks[row]), group.blocks.shape[1])
            for index in range(first, last):
                block = int(batch.block_tables[row, index])
                group.blocks[place, index] = block
                append_block(self._shape, group.plan, place, index, block)
        for group in self._groups:
            positions = torch.from_numpy(batch.positions[group.rows])
            continue_generations(self._shape, group.plan, group.blocks, positions)

    def _build(self, batch: GenerationBatch) -> None:
        """Group by length, longest first: nobody is padded to more than twice its own blocks.

        So a step costs at most twice its real tokens, in at most log2(longest) groups.
        """
        self._groups, self._places = [], {}
        used = -(-(batch.positions[: len(batch)] + 1) // self._shape.block_size)
        order = np.argsort(-used, kind="stable")
        while len(order):
            widest = int(used[order[0]])
            within = 2 * used[order] > widest
            self._add_group(batch, order[within], widest)
            order = order[~within]

    def _add_group(self, batch: GenerationBatch, rows: Ids, width: int) -> None:
        tables = batch.block_tables[rows, :width]
        own = np.arange(width) < batch.num_blocks[rows, None]
        blocks = torch.from_numpy(np.where(own, tables, tables[:, :1]))
        lengths = torch.from_numpy(batch.positions[rows] + 1)
        members = torch.from_numpy(rows)
        plan = plan_generations(self._shape, blocks, members, lengths, self._num_heads)
        group = _Group(rows, members, blocks, plan)
        self._groups.append(group)
        for place, row in enumerate(rows.tolist()):
            self._places[row] = (group, place)
