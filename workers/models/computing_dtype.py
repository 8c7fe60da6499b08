"""In which type a model computes, where the configuration leaves it open."""

from segue.workers.models.spec import ModelSpec

COMPUTING_DTYPES = ("float32", "bfloat16", "float16")


def computing_dtype(asked: str, spec: ModelSpec, *, on_cpu: bool) -> str:
    """What is asked for; auto is float32 on a CPU, else the type the checkpoint was saved in."""
    if asked != "auto":
        return asked
    if on_cpu:
        return "float32"
    saved = spec.checkpoint_dtype
    return saved if saved in COMPUTING_DTYPES else "bfloat16"
