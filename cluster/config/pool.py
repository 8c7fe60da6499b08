"""The section `pools`: what each pool is for, its size, and what a worker of it needs."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from segue.cluster.config.engine import EngineConfig
from segue.cluster.config.section import Section

Role = Literal["prefill", "decode", "both"]
# A pool's name is a Ray resource and a metrics label; lower case keeps it off Ray's CPU and GPU.
PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$", max_length=40)]


class ReplicaConfig(Section):
    """What Ray must find on a node for one worker of the pool."""

    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    resources: dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        default=None, description="default: 1 of a resource named after the pool"
    )
    label_selector: dict[str, str] = {}


class PoolConfig(Section):
    role: Role
    num_replicas: Annotated[int, Field(ge=0)] = 1
    replica: ReplicaConfig = ReplicaConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _device_is_asked_of_ray(self) -> Self:
        if self.engine.device == "cuda" and not self.replica.num_gpus:
            raise ValueError(
                "engine.device is cuda, but replica.num_gpus is 0: Ray hides every GPU from a "
                "worker that asks for none"
            )
        return self
