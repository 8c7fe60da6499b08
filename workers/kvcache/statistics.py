"""Counts what the KV-cache did since it began; differences of two readings give any interval."""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class CacheStatistics:
    """Counts of blocks where nothing else is said. They only ever grow."""

    queried_tokens: int = 0  # tokens of admitted sequences
    reused_tokens: int = 0  # of which KV was there already
    allocated: int = 0  # blocks handed out
    allocated_for_answers: int = 0  # of which behind a sequence's tokens at admission
    reused_full: int = 0
    reused_partial: int = 0
    missed: int = 0  # blocks of admitted sequences whose KV had to be computed or fetched
    copied: int = 0  # within the device, for a partial reuse or a fork
    offloaded: int = 0
    onboarded: int = 0
    forgotten: int = 0  # blocks whose content was given up

    @property
    def reused(self) -> int:
        return self.reused_full + self.reused_partial

    @property
    def hit_rate(self) -> float:
        """Reused blocks among those that admitted sequences asked for; 0 without any."""
        asked = self.reused + self.missed
        return self.reused / asked if asked else 0.0

    def copy(self) -> "CacheStatistics":
        return CacheStatistics(**{item.name: getattr(self, item.name) for item in fields(self)})

    def since(self, earlier: "CacheStatistics") -> "CacheStatistics":
        """What was counted after `earlier` was read, so that warm-up can be left out."""
        return CacheStatistics(
            **{i.name: getattr(self, i.name) - getattr(earlier, i.name) for i in fields(self)}
        )
