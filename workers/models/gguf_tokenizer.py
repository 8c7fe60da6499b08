"""Builds tokenizer.json and tokenizer_config.json from the metadata of a GGUF file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from segue.cluster.errors import ConfigurationError

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

# Vocabularies learned with GPT-2's split, and with each digit cut off before it.
_GPT2_SPLIT = frozenset(("default", "gpt-2", "gpt2"))
_DIGITS_SPLIT = frozenset(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"))
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_REGEX_SPLITS = {
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "tekken": _TEKKEN,
}


def tokenizer_json(metadata: Mapping[str, Any], source: Path) -> str:
    """The text of tokenizer.json. Raises ConfigurationError for an unknown tokenizer."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer = _byte_level(tokens, metadata, source)
    elif model == "llama":
        tokenizer = _sentencepiece(tokens, metadata)
    else:
        raise ConfigurationError(f"{source}: GGUF tokenizer {model!r} is not supported")
    _add_whole_tokens(tokenizer, tokens, metadata.get("tokenizer.ggml.token_type", ()))
    _add_borders(tokenizer, metadata)
    return tokenizer.to_str()


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "add_bos_token": _adds_bos(metadata),
        "add_eos_token": bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        config[f"{name}_token"] = None if token_id is None else tokens[token_id]
    return config


def _byte_level(tokens: Sequence[str], metadata: Mapping[str, Any], source: Path) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _split(metadata.get("tokenizer.ggml.pre", "default"), source)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split(name: str, source: Path) -> Any:
    if name in _GPT2_SPLIT:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in _DIGITS_SPLIT:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name in _REGEX_SPLITS:
        regex = pre_tokenizers.Split(Regex(_REGEX_SPLITS[name]), behavior="isolated")
        spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([regex, spelling])
    raise ConfigurationError(f"{source}: GGUF pre-tokenizer {name!r} is not supported")


def _sentencepiece(tokens: Sequence[str], metadata: Mapping[str, Any]) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if "tokenizer.ggml.merges" in metadata:
        merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    else:
        merges = _merges_from_scores(vocabulary, metadata["tokenizer.ggml.scores"])
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first" if prefixed else "never", split=False
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_from_scores(
    vocabulary: Mapping[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to cut a token into two tokens, the best-scored token first."""
    ranked: list[tuple[float, int, int, int, int, str, str]] = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                sizes = (-len(left), -len(right))
                ids = (vocabulary[left], vocabulary[right])
                ranked.append((-scores[index], *sizes, *ids, left, right))
    return [(entry[-2], entry[-1]) for entry in sorted(ranked)]


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _add_whole_tokens(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    control, user_defined = (
        [
            AddedToken(token, normalized=False, special=kind == _CONTROL)
            for token, token_kind in zip(tokens, kinds, strict=False)
            if token_kind == kind
        ]
        for kind in (_CONTROL, _USER_DEFINED)
    )
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(user_defined)


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    """As llama.cpp: a sentencepiece vocabulary that does not say otherwise begins with BOS."""
    default = metadata.get("tokenizer.ggml.model") == "llama"
    return bool(metadata.get("tokenizer.ggml.add_bos_token", default))


def _add_borders(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> None:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    bos = metadata.get("tokenizer.ggml.bos_token_id") if _adds_bos(metadata) else None
    adds_eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    eos = metadata.get("tokenizer.ggml.eos_token_id") if adds_eos else None
    borders = [(tokens[index], index) for index in (bos, eos) if index is not None]
    if not borders:
        return
    before = [] if bos is None else [tokens[bos]]
    after = [] if eos is None else [tokens[eos]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B", *after],
        special_tokens=borders,
    )
