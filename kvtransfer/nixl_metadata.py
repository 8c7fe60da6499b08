"""The metadata that NIXL transports exchange: a versioned, validated JSON text, never a pickle."""

import base64
import json
from dataclasses import dataclass

from segue.cluster.errors import TransferError

METADATA_KIND = "segue-nixl/1"
MAX_METADATA_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class RegionMetadata:
    """One registered region and the agent that owns it."""

    agent_name: str
    agent_metadata: bytes
    address: int
    num_bytes: int
    device: str

    def encode(self) -> bytes:
        fields = {
            "kind": METADATA_KIND,
            "agent_name": self.agent_name,
            "agent_metadata": base64.b64encode(self.agent_metadata).decode(),
            "address": self.address,
            "num_bytes": self.num_bytes,
            "device": self.device,
        }
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, metadata: bytes) -> "RegionMetadata":
        """Raises TransferError for anything `encode` does not write."""
        if len(metadata) > MAX_METADATA_BYTES:
            raise TransferError(f"transport metadata of {len(metadata)} bytes is too long")
        try:
            fields = json.loads(metadata)
            if fields["kind"] != METADATA_KIND:
                raise TransferError(f"transport metadata of unknown kind {fields['kind']!r}")
            region = cls(
                agent_name=fields["agent_name"],
                agent_metadata=base64.b64decode(fields["agent_metadata"], validate=True),
                address=fields["address"],
                num_bytes=fields["num_bytes"],
                device=fields["device"],
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TransferError(f"not the metadata of a NIXL transport: {error!r}") from error
        region._check()
        return region

    def _check(self) -> None:
        numbers = (self.address, self.num_bytes)
        well_typed = all(type(number) is int for number in numbers) and all(
            isinstance(text, str) and text for text in (self.agent_name, self.device)
        )
        if not (well_typed and 0 < self.num_bytes and 0 < self.address < 2**64 - self.num_bytes):
            raise TransferError("transport metadata with fields out of range")
