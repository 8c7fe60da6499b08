"""Known request fields that Segue does not implement: refused by name, never silently ignored.

A field is let through only with a value that asks for nothing. null asks for nothing.
"""

from collections.abc import Mapping
from typing import Any

from segue.cluster.errors import InvalidRequest

_ONLY_NULL: tuple[Any, ...] = ()

_COMMON: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "prompt_logprobs": (False,),
    "logprob_token_ids": ([],),
    "logit_bias": ({},),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "length_penalty": (1, 1.0),
    "use_beam_search": (False,),
    "early_stopping": (False,),
    "bad_words": ([],),
    "allowed_token_ids": _ONLY_NULL,
    "logits_processors": ([],),
    "truncate_prompt_tokens": _ONLY_NULL,
    "truncation_side": _ONLY_NULL,
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": _ONLY_NULL,
    "guided_regex": _ONLY_NULL,
    "guided_choice": _ONLY_NULL,
    "guided_grammar": _ONLY_NULL,
    "guided_decoding_backend": _ONLY_NULL,
    "guided_whitespace_pattern": _ONLY_NULL,
    "structural_tag": _ONLY_NULL,
    "json_schema": _ONLY_NULL,
    "regex": _ONLY_NULL,
    "ebnf": _ONLY_NULL,
    "stop_regex": _ONLY_NULL,
    "no_stop_trim": (False,),
    "spaces_between_special_tokens": (True,),
    "return_tokens_as_token_ids": (False,),
    "return_prompt_text": (False,),
    "stream_interval": (1,),
    "chat_template": _ONLY_NULL,
    "documents": ([],),
    "kv_transfer_params": ({},),
    "lora_path": _ONLY_NULL,
    "vllm_xargs": ({},),
}
_COMPLETION: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "prompt_embeds": _ONLY_NULL,
}
_CHAT: dict[str, tuple[Any, ...]] = {
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": _ONLY_NULL,
    "prediction": _ONLY_NULL,
    "web_search_options": _ONLY_NULL,
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "echo": (False,),
}


UNSUPPORTED_COMPLETION = _COMMON | _COMPLETION | {"best_of": _ONLY_NULL}
UNSUPPORTED_CHAT = _COMMON | _CHAT | {"best_of": _ONLY_NULL}


def refuse_unsupported(data: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises InvalidRequest for the first such field of the body, in the body's own order."""
    for name, value in data.items():
        if name not in neutral or value is None:
            continue
        if name == "best_of":
            _check_best_of(value, data.get("n"))
        # type() because False == 0 and True == 1: a bool is no neutral number.
        elif not any(type(value) is type(v) and value == v for v in neutral[name]):
            raise InvalidRequest(f"{name} is not implemented", param=name)


def _check_best_of(value: Any, n: Any) -> None:
    """All samples are returned, so no more can be drawn than are asked for."""
    n = 1 if n is None else n
    if type(value) is not int or type(n) is not int or not 1 <= value <= n:
        raise InvalidRequest("best_of above n is not implemented", param="best_of")
