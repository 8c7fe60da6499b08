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
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="prompt + answer tokens; default: the model's own, or what the KV-caches hold",
    )

    @property
    def served_name(self) -> str:
        return self.id or Path(self.path).name.removesuffix(".gguf") or self.path
