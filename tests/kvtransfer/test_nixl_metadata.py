"""The exchanged metadata: what is written is read back, anything else is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cluster.errors import TransferError
from segue.kvtransfer.nixl_metadata import MAX_METADATA_BYTES, RegionMetadata

REGION = RegionMetadata("agent", b"\x00\xff", 4096, 100, "cuda:1")


def test_round_trip() -> None:
    assert RegionMetadata.decode(REGION.encode()) == REGION


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "segue-nixl/2"},
        {"agent_name": ""},
        {"agent_name": 3},
        {"agent_metadata": "not base64!"},
        {"agent_metadata": None},
        {"address": 0},
        {"address": "4096"},
        {"address": 2**64 - 100},
        {"num_bytes": 0},
        {"num_bytes": True},
        {"num_bytes": 1.5},
        {"device": ""},
    ],
)
def test_wrong_fields_are_refused(change: dict[str, object]) -> None:
    fields = json.loads(REGION.encode()) | change
    with pytest.raises(TransferError):
        RegionMetadata.decode(json.dumps(fields).encode())


@pytest.mark.parametrize("field", sorted(json.loads(REGION.encode())))
def test_missing_fields_are_refused(field: str) -> None:
    fields = json.loads(REGION.encode())
    del fields[field]
    with pytest.raises(TransferError):
        RegionMetadata.decode(json.dumps(fields).encode())


@given(st.one_of(st.binary(), st.sampled_from([b"[]", b"1", b"null", b"[" * 100_000])))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(TransferError):
        RegionMetadata.decode(data)


def test_overlong_metadata_is_refused_unread() -> None:
    with pytest.raises(TransferError, match="too long"):
        RegionMetadata.decode(b" " * (MAX_METADATA_BYTES + 1))
