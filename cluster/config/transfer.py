"""The section `transfer`: how KV goes from worker to worker, and how long that may take."""

from typing import Annotated, Literal

from pydantic import Field

from segue.cluster.config.byte_size import ByteCount
from segue.cluster.config.section import Section

MAX_STAGE_S = 600.0
ANSWERS_S = 15.0  # for what is asked in a move, beyond what the asked may wait for
MAX_MOVE_S = 4 * MAX_STAGE_S + ANSWERS_S  # whatever is configured


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
    credit_wait_s: Annotated[float, Field(gt=0, le=3000)] = Field(
        default=120.0, description="how long a prompt waits for room on its decode worker"
    )
    read_timeout_s: Annotated[float, Field(gt=0, le=MAX_STAGE_S)] = 20.0
    require_transport: Literal["any", "rdma", "nvlink", "shm", "tcp"] = Field(
        default="any", description="workers that would exchange KV in another way are kept apart"
    )
    preflight_bytes: Annotated[ByteCount, Field(ge=4096, le=2**26)] = Field(
        default=2**20, description="length of the pattern that two workers exchange when they meet"
    )
    preflight_timeout_s: Annotated[float, Field(gt=0, le=MAX_STAGE_S)] = Field(
        default=5.0, description="how long that exchange may take"
    )
    migration_wait_s: Annotated[float, Field(gt=0, le=MAX_STAGE_S)] = Field(
        default=5.0,
        description="how long a running request that is to move waits for room at its new worker",
    )
    migration_pause_s: Annotated[float, Field(gt=0, le=MAX_STAGE_S)] = Field(
        default=5.0,
        description="a moving request goes on where it was if nobody took over this long after "
        "it had stopped",
    )

    @property
    def longest_move_s(self) -> float:
        """For all of a move: its wait for room, reads, one of which may fail, and its pause.

        Whoever ordered it waits longer than that."""
        stages = self.migration_wait_s + 2 * self.read_timeout_s + self.migration_pause_s
        return max(50.0, stages + ANSWERS_S)
