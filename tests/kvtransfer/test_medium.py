"""What UCX says of its lanes, read rightly, and what follows for the bytes of a pair."""

import pytest

from segue.kvtransfer.medium import Lane, MediumKind, medium_of
from segue.kvtransfer.ucx_endpoints import UcxEndpoints, parse_lanes

PRINTED = """#
# UCP endpoint
#
#               peer: <no debug data>
#                 lane[0]:  2:tcp/lo.0 md[1]                -> md[1]/tcp/sysdev[255] seg 4294967295 am keepalive wireup
#                 lane[1]:  5:cma/memory.0 md[4]            -> md[4]/cma/sysdev[255] seg 4294967295 rma_bw#0
#                 lane[2]:  9:rc_mlx5/mlx5_0:1.0 md[5]      -> md[5]/ib/sysdev[3] seg 8256 rma_bw#1 am_bw#0
#
# +-----------+------------+--------+
# | active message by ucp_am_send*  |
# |   0..8184 | short      | tcp/lo |
"""  # noqa: E501


def lane(name: str, *uses: str) -> Lane:
    transport, _, device = name.partition("/")
    return Lane(transport, device, uses)


def test_lanes_are_read_from_what_ucx_prints() -> None:
    assert parse_lanes(PRINTED) == (
        lane("tcp/lo", "am", "keepalive", "wireup"),
        lane("cma/memory", "rma_bw#0"),
        lane("rc_mlx5/mlx5_0:1", "rma_bw#1", "am_bw#0"),
    )
    assert parse_lanes("something else entirely") == ()


@pytest.mark.parametrize(
    ("lanes", "device", "kind", "detail", "measured"),
    [
        ([lane("cma/memory", "rma_bw#0"), lane("tcp/lo", "am")], "cpu", "shm", "cma/memory", True),
        (
            [lane("tcp/lo", "rma_bw#0", "am"), lane("tcp/eth0", "rma_bw#1")],
            *("cpu", "tcp", "tcp/lo tcp/eth0", True),
        ),
        ([lane("rc_mlx5/mlx5_0:1", "rma#0", "am")], "cpu", "rdma", "rc_mlx5/mlx5_0:1", True),
        ([lane("dc_mlx5/mlx5_0:1", "rma_bw#0")], "cuda:0", "rdma", "dc_mlx5/mlx5_0:1", True),
        (
            [lane("cma/memory", "rma_bw#0"), lane("cuda_ipc/cuda", "rma_bw#1")],
            *("cuda:0", "nvlink", "cuda_ipc/cuda", True),  # cma cannot reach device memory
        ),
        (
            [lane("rc_mlx5/mlx5_0:1", "rma_bw#0"), lane("cuda_ipc/cuda", "rma_bw#1")],
            *("cuda:0", "nvlink", "cuda_ipc/cuda", False),  # either of them
        ),
        (
            [lane("cuda_copy/cuda", "rma_bw#0"), lane("tcp/eth0", "am")],
            *("cuda:0", "tcp", "tcp/eth0", True),  # staged through host memory
        ),
        ([lane("novel/thing", "rma_bw#0")], "cpu", "unknown", "", False),
        ([], "cpu", "unknown", "", False),
    ],
)
def test_what_carries_reads(
    lanes: list[Lane], device: str, kind: str, detail: str, measured: bool
) -> None:
    medium = medium_of(lanes, device)
    assert (medium.kind, medium.detail, medium.measured) == (MediumKind(kind), detail, measured)


def test_a_context_that_does_not_exist_has_no_endpoints() -> None:
    endpoints = UcxEndpoints("nobody")
    assert endpoints.addresses() == frozenset()
    assert endpoints.lanes(0x1234) == ()  # never asked about: it may not exist
