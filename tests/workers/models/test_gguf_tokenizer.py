"""Tokenizers built from GGUF metadata: splitting, whole tokens, borders and round trips."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from segue.cluster.errors import ConfigurationError
from segue.workers.models.gguf_tokenizer import tokenizer_json

PIECES = ["▁a", "▁b", "ab", "▁ab", "▁", "a", "b"]
SENTENCEPIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"]
    + [f"<0x{byte:02X}>" for byte in range(256)]
    + PIECES,
    "tokenizer.ggml.scores": [0.0] * 259 + [-3.0, -4.0, -2.0, -1.0, -5.0, -6.0, -7.0],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}

# The bundled vocabulary has no token for some control bytes, nor for what begins rare planes.
SPELLABLE = st.characters(min_codepoint=32, max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc"])


@pytest.fixture(scope="module")
def bundled_tokenizer(bundled_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(bundled_model / "tokenizer.json"))


@settings(max_examples=200, deadline=None)
@given(text=st.text(SPELLABLE, max_size=60))
def test_any_text_survives_the_round_trip(bundled_tokenizer: Tokenizer, text: str) -> None:
    ids = bundled_tokenizer.encode(text).ids
    assert bundled_tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1987", ["1", "9", "8", "7"]),
        ("a  12", ["a", "ĠĠ", "1", "2"]),
        ("Hello world's", ["Hello", "Ġworld", "'s"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "Ċ"]),
        ("x<|im_end|>y", ["x", "<|im_end|>", "y"]),
    ],
)
def test_the_bundled_tokenizer_splits_as_it_was_trained(
    bundled_tokenizer: Tokenizer, text: str, tokens: list[str]
) -> None:
    assert bundled_tokenizer.encode(text).tokens == tokens


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(SENTENCEPIECE, Path("m.gguf")))
    assert tokenizer.encode("ab a").tokens == ["<s>", "▁ab", "▁a"]
    assert tokenizer.encode("é").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab é b").ids) == "ab é b"


def test_borders_follow_the_metadata() -> None:
    plain = SENTENCEPIECE | {"tokenizer.ggml.add_bos_token": False}
    closed = SENTENCEPIECE | {"tokenizer.ggml.add_eos_token": True}
    for metadata, tokens in ((plain, ["▁ab"]), (closed, ["<s>", "▁ab", "</s>"])):
        tokenizer = Tokenizer.from_str(tokenizer_json(metadata, Path("m.gguf")))
        assert tokenizer.encode("ab").tokens == tokens


def test_an_unknown_tokenizer_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'bert'"):
        tokenizer_json(SENTENCEPIECE | {"tokenizer.ggml.model": "bert"}, Path("m.gguf"))
