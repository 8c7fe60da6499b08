"""The whole configuration: every section with its defaults, and what must agree between them."""

from typing import Self

from pydantic import Field, model_validator

from segue.cluster.config.control import ControlConfig
from segue.cluster.config.gateway import GatewayConfig
from segue.cluster.config.model import ModelConfig
from segue.cluster.config.pool import PoolConfig, PoolName
from segue.cluster.config.section import Section
from segue.cluster.config.transfer import TransferConfig

RAY_RESOURCES = frozenset({"memory", "object_store_memory"})


def _default_pools() -> dict[str, PoolConfig]:
    return {"prefill": PoolConfig(role="prefill"), "decode": PoolConfig(role="decode")}


class SegueConfig(Section):
    """The whole file. Every key has a default: without a file the bundled model is served."""

    model: ModelConfig = ModelConfig()
    gateway: GatewayConfig = GatewayConfig()
    pools: dict[PoolName, PoolConfig] = Field(default_factory=_default_pools, min_length=1)
    transfer: TransferConfig = TransferConfig()
    control: ControlConfig = ControlConfig()

    @model_validator(mode="after")
    def _pools_agree(self) -> Self:
        if taken := RAY_RESOURCES & self.pools.keys():
            raise ValueError(f"pools: '{min(taken)}' is a resource of Ray itself; rename the pool")
        roles = {pool.role for pool in self.pools.values()}
        if "both" not in roles and not {"prefill", "decode"} <= roles:
            missing = ({"prefill", "decode"} - roles).pop()
            raise ValueError(f"pools: no pool has role '{missing}' (nor 'both')")
        for field in ("block_size", "kv_cache_dtype"):  # what a block is
            found = {name: getattr(pool.engine, field) for name, pool in self.pools.items()}
            if len(set(found.values())) > 1:
                raise ValueError(f"pools: engine.{field} must be equal everywhere, got {found}")
        return self
