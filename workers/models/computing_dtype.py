"""In which type a model computes, and what an answer then owes to those beside it."""

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


def dependence_on_company(dtype: str, kv_cache_dtype: str, *, on_cpu: bool) -> str | None:
    """Why an answer may be another one in company, or after recovery; None if it is the same.

    On a CPU those who share a step change no bit of each other. But they decide how prompts are
    cut into chunks, and whoever recovers reads its answer as a prompt: these change the rounding.
    Only in plain float32 is that too little to choose another token, but for near ties.
    """
    if not on_cpu:
        return "on a GPU the size of a step decides how its numbers are added up"
    if dtype != "float32":
        return f"in {dtype} (model.dtype) it matters how a prompt is cut into chunks"
    if kv_cache_dtype != "auto":
        return f"with {kv_cache_dtype} (kv_cache_dtype) it matters how a prompt is cut into chunks"
    return None
