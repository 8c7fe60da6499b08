"""What must be moved between KV blocks before a step: the manager's orders to the runner.

The orders of a step form one list. Whoever carries them out does so in its order, after every
earlier step's writes and before the step's own; that order alone excludes all hazards.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopyBlock:
    """The first `num_tokens` slots of one device block to another; the rest may be copied too."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class OffloadBlock:
    """A device block to a host slot."""

    block_id: int
    slot: int


@dataclass(frozen=True, slots=True)
class OnboardBlock:
    """A host slot to a device block."""

    slot: int
    block_id: int


BlockOperation = CopyBlock | OffloadBlock | OnboardBlock
