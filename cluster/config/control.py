"""The section `control`: how soon a worker is missed, suspected, replaced; who may call whom."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from segue.cluster.config.section import Section
from segue.cluster.config.tls import TlsConfig


class ControlConfig(Section):
    heartbeat_s: Annotated[float, Field(gt=0, le=20)] = Field(
        default=1.0,
        description="between the signs of life of a worker; the greatest value leaves three of "
        "them in the minute after which workers forget a peer that they are not told of",
    )
    dead_after_s: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="a silent but connected worker is replaced after this long"
    )
    suspect_after_s: Annotated[float, Field(gt=0)] = Field(
        default=2.5, description="a silent worker gets no new requests after this long"
    )
    doubtful_deaths_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.25,
        description="while more than half of a pool is silent, which is more likely the "
        "controller's own trouble: the part of it, at least one worker, that is replaced for its "
        "silence in a minute",
    )
    drain_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0,
        description="a draining worker leaves when nothing is left on it, at the latest then; what "
        "it still writes goes on elsewhere",
    )
    start_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=300.0,
        description="a worker that is not ready this long after its process began is replaced",
    )
    stalled_after_s: Annotated[float, Field(gt=0)] = Field(
        default=60.0,
        description="a worker in which something has not moved for so long, though it has work, "
        "gets no new requests until it moves",
    )
    wedged_after_s: Annotated[float, Field(gt=0)] = Field(
        default=180.0,
        description="and is replaced after this long; must exceed the longest step of the engine",
    )

    tls: TlsConfig | None = Field(
        default=None,
        description="mutual TLS for the calls between gateway, controller and workers; KV blocks "
        "travel by UCX, without it",
    )
    insecure: bool = Field(
        default=False,
        description="let workers and controller listen beyond loopback without tls: whoever can "
        "read the network then has the cluster's token, prompts and answers",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        # One beat may be late by as much as the next one takes: else every worker would flap.
        if not 2 * self.heartbeat_s <= self.suspect_after_s <= self.dead_after_s:
            raise ValueError(
                "2 * heartbeat_s <= suspect_after_s <= dead_after_s must hold, got "
                f"{self.heartbeat_s}, {self.suspect_after_s}, {self.dead_after_s}"
            )
        if self.tls is not None and self.insecure:
            raise ValueError("give tls or insecure, not both")
        if self.stalled_after_s > self.wedged_after_s:
            raise ValueError(
                f"wedged_after_s ({self.wedged_after_s}) must not be below stalled_after_s "
                f"({self.stalled_after_s})"
            )
        return self
