"""The section `model`: which model is served, and in which type it computes."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from segue.cluster.config.section import Section

BUNDLED_MODEL = "smollm2-135m"


class ModelConfig(Section):
    """Which model is served. `path`: a Hugging Face folder, a GGUF file, or the bundled model."""

    path: str = Field(default=BUNDLED_MODEL, description="folder, .gguf file, or 'smollm2-135m'")
    id: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="the name clients use; default: last part of path"
    )
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="in which the model computes; auto: as its checkpoint was saved, and float32 "
        "where a pool has no GPU; in float32 on a CPU, and only there, no answer depends on the "
        "requests beside it",
    )
    generation_config: Literal["auto", "none"] = Field(
        default="auto",
        description="sampling defaults of requests: auto: those of the model's "
        "generation_config.json; none: temperature 1 and no filters",
    )
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="prompt + answer tokens; default: the model's own, or what the KV-caches hold",
    )

    @property
    def served_name(self) -> str:
        return self.id or Path(self.path).name.removesuffix(".gguf") or self.path
