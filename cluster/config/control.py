"""The section `control`: how soon a worker is missed, suspected, replaced."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from segue.cluster.config.section import Section


class ControlConfig(Section):
    heartbeat_s: Annotated[float, Field(gt=0)] = 1.0
    dead_after_s: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="a silent but connected worker is replaced after this long"
    )
    suspect_after_s: Annotated[float, Field(gt=0)] = Field(
        default=2.5, description="a silent worker gets no new requests after this long"
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

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.heartbeat_s < self.suspect_after_s <= self.dead_after_s:
            raise ValueError(
                "heartbeat_s < suspect_after_s <= dead_after_s must hold, got "
                f"{self.heartbeat_s}, {self.suspect_after_s}, {self.dead_after_s}"
            )
        if self.stalled_after_s > self.wedged_after_s:
            raise ValueError(
                f"wedged_after_s ({self.wedged_after_s}) must not be below stalled_after_s "
                f"({self.stalled_after_s})"
            )
        return self
