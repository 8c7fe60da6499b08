"""What every section of the configuration is: frozen, without unknown keys or infinities."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    # No infinity: every wait has a deadline.
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )
