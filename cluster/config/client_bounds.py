"""The section `gateway.client_bounds`: how much a client may ask for at the cost of others."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from segue.cluster.config.section import Section
from segue.cluster.retention import DEFAULT_PRIORITY

Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class ClientBounds(Section):
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        default="fcfs",
        description="fcfs: requests are served in the order of arrival, and one that sends a "
        "priority other than 0 is answered 400; priority: the lowest goes first among those that "
        "wait, and waiting outweighs it (engine.priority_ageing_s)",
    )
    min_priority: Priority = Field(
        default=-10, description="the most urgent priority that a request may send, where it counts"
    )
    max_priority: Priority = Field(
        default=10, description="the least urgent priority that a request may send, where it counts"
    )
    max_retention_priority: Annotated[int, Field(ge=DEFAULT_PRIORITY, le=100)] = Field(
        default=100,
        description="highest priority that a kv_cache_retention_config may give to KV; "
        f"{DEFAULT_PRIORITY} is that of requests which ask for none",
    )
    max_retention_s: Annotated[float, Field(gt=0)] | None = Field(
        default=600.0,
        description=f"longest that KV may keep a retention priority above {DEFAULT_PRIORITY} after "
        "its last use, and how long it does if the request gives no duration; null: any time",
    )

    @model_validator(mode="after")
    def _default_lies_within(self) -> Self:
        if not self.min_priority <= 0 <= self.max_priority:
            raise ValueError(
                f"min_priority ({self.min_priority}) and max_priority ({self.max_priority}) must "
                "have 0 between them, the priority of requests that send none"
            )
        return self
