"""Where the bytes of a KV block are: the descriptor both ends of a transfer must agree on.

Memory is block-major, `[block][layer][k|v][kv_head][slot][head_dim]`: a block, a layer range of a
block, and a head range of one layer's keys or values are each one contiguous byte range. Quantised,
the codes of a head are followed by its scales, `[slot]`, so all of this holds and no range can be
sent, summed up or freed without the scales that belong to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from segue.cluster.errors import ConfigurationError, TransferError
from segue.kvtransfer.transport import ByteRange

AXES = "block,layer,kv,kv_head,slot,head_dim"
SCALES_VERSION = 1  # grows when the meaning of a scale changes, not only its place


@dataclass(frozen=True, slots=True)
class HeadTensor:
    """A tensor's share of a head's keys or values; `place` counts from where those begin."""

    name: str
    dtype: str
    place: ByteRange


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of one worker's KV memory. `num_blocks` may differ between peers, no more.

    `scale_bytes`: of one float scale for each (layer, k|v, kv_head, slot); 0 without scales.
    """

    num_blocks: int
    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: str
    itemsize: int
    scale_bytes: int = 0

    def __post_init__(self) -> None:
        for name in (
            "num_blocks",
            "num_layers",
            "num_kv_heads",
            "block_size",
            "head_dim",
            "itemsize",
        ):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"KV layout: {name} must be at least 1", param=name)
        if self.scale_bytes not in (0, 2, 4):
            raise ConfigurationError(
                f"KV layout: scale_bytes must be 0, 2 or 4, not {self.scale_bytes}",
                param="scale_bytes",
            )
        if self.scale_bytes and self.head_dim * self.itemsize % self.scale_bytes:
            raise ConfigurationError(
                f"KV layout: scales of {self.scale_bytes} bytes are not aligned behind a head_dim "
                f"of {self.head_dim}",
                param="head_dim",
            )

    def head_tensors(self) -> tuple[HeadTensor, ...]:
        """All that makes up the keys, or the values, of one head in one layer of a block."""
        data_bytes = self.block_size * self.head_dim * self.itemsize
        data = HeadTensor("data", self.dtype, ByteRange(0, data_bytes))
        if not self.scale_bytes:
            return (data,)
        place = ByteRange(data_bytes, self.block_size * self.scale_bytes)
        return (data, HeadTensor("scales", f"float{8 * self.scale_bytes}", place))

    @property
    def head_bytes(self) -> int:
        return self.block_size * (self.head_dim * self.itemsize + self.scale_bytes)

    @property
    def layer_bytes(self) -> int:
        return 2 * self.num_kv_heads * self.head_bytes

    @property
    def block_bytes(self) -> int:
        return self.num_layers * self.layer_bytes

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    def offset(self, block_id: int) -> int:
        if not 0 <= block_id < self.num_blocks:
            raise TransferError(f"block {block_id} is outside [0, {self.num_blocks})")
        return block_id * self.block_bytes

    def block_range(self, block_id: int) -> ByteRange:
        return ByteRange(self.offset(block_id), self.block_bytes)

    def layer_range(self, block_id: int, first: int, stop: int) -> ByteRange:
        """Layers [first, stop) of a block."""
        _check_interval("layers", first, stop, self.num_layers)
        start = self.offset(block_id) + first * self.layer_bytes
        return ByteRange(start, (stop - first) * self.layer_bytes)

    def head_ranges(self, block_id: int, first: int, stop: int) -> list[ByteRange]:
        """KV heads [first, stop) of a block: keys then values, layer by layer."""
        _check_interval("heads", first, stop, self.num_kv_heads)
        plane_bytes = self.num_kv_heads * self.head_bytes
        start = self.offset(block_id) + first * self.head_bytes
        length = (stop - first) * self.head_bytes
        return [
            ByteRange(start + plane * plane_bytes, length) for plane in range(2 * self.num_layers)
        ]

    def fingerprint(self) -> dict[str, str]:
        """What a peer must have in common with us."""
        return {
            "axes": AXES,
            "num_layers": str(self.num_layers),
            "num_kv_heads": str(self.num_kv_heads),
            "block_size": str(self.block_size),
            "head_dim": str(self.head_dim),
            "dtype": self.dtype,
            "itemsize": str(self.itemsize),
            "scales": f"v{SCALES_VERSION}" if self.scale_bytes else "none",
            "tensors": " ".join(map(_described, self.head_tensors())),
        }

    @property
    def storage(self) -> str:
        """How a number is stored, in one line: all of it that a block's key must tell apart."""
        if not self.scale_bytes:
            return self.dtype
        return f"{self.dtype} with float{8 * self.scale_bytes} scales v{SCALES_VERSION}"


def incompatibility(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Name the first field in which two fingerprints differ, or None if they are equal."""
    for field in sorted(ours.keys() | theirs.keys()):
        if ours.get(field) != theirs.get(field):
            here, there = (_shown(side.get(field)) for side in (ours, theirs))
            return f"{field} is {here} here and {there} at the peer"
    return None


def _described(tensor: HeadTensor) -> str:
    return f"{tensor.name}:{tensor.dtype}@{tensor.place.offset}+{tensor.place.length}"


def _shown(value: str | None) -> str:
    return "absent" if value is None else repr(value)


def _check_interval(what: str, first: int, stop: int, limit: int) -> None:
    if not 0 <= first < stop <= limit:
        raise TransferError(f"{what} [{first}, {stop}) are not a part of [0, {limit})")
