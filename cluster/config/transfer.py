"""The section `transfer`: how KV goes from worker to worker, and how long that may take."""

from typing import Annotated, Literal

from pydantic import Field

from segue.cluster.config.byte_size import ByteCount
from segue.cluster.config.section import Section


class TransferConfig(Section):
    transport: Literal["nixl", "loopback"] = Field(
        default="nixl", description="loopback works within one process only (tests)"
    )
    checksum: bool | Literal["auto"] = Field(
        default="auto",
        description="verify each block after it was read; auto: where KV lies in host memory. On a "
        "GPU blocks are copied to the host to be summed up, at both ends",
    )
    layer_groups: Annotated[int, Field(ge=1, le=16)] | None = Field(
        default=None, description="groups of layers in which a last chunk is sent; default: 2"
    )
    lease_s: Annotated[float, Field(gt=0)] = 30.0
    credit_wait_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0, description="how long a prompt waits for room on its decode worker"
    )
    read_timeout_s: Annotated[float, Field(gt=0)] = 20.0
    require_transport: Literal["any", "rdma", "nvlink", "shm", "tcp"] = Field(
        default="any", description="workers that would exchange KV in another way are kept apart"
    )
    preflight_bytes: Annotated[ByteCount, Field(ge=4096, le=2**26)] = Field(
        default=2**20, description="length of the pattern that two workers exchange when they meet"
    )
    preflight_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0, description="how long that exchange may take"
    )
    migration_wait_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0,
        description="how long a running request that is to move waits for room at its new worker",
    )
    migration_pause_s: Annotated[float, Field(gt=0)] = Field(
        default=5.0,
        description="a moving request goes on where it was if nobody took over this long after "
        "it had stopped",
    )
