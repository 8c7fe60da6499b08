"""The tokenizer against the library's own answers, and its bounds."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from segue.cluster.errors import ConfigurationError, InvalidRequest
from segue.router.tokenizer import TextTokenizer, load_tokenizer


def encode(tokenizer: TextTokenizer, text: str, max_tokens: int = 2048) -> tuple[int, ...]:
    return tokenizer.encode(text, add_special_tokens=True, max_tokens=max_tokens, param="prompt")


@pytest.mark.parametrize("repeat", [1, 500])
def test_round_trip(text_tokenizer: TextTokenizer, bundled_model: Path, repeat: int) -> None:
    text = "Größe 東京 👍🏽 <|im_start|> " * repeat
    ids = encode(text_tokenizer, text)
    oracle = Tokenizer.from_file(str(bundled_model / "tokenizer.json"))
    assert list(ids) == oracle.encode(text).ids
    assert text_tokenizer.decode(ids) == text


def test_a_hopeless_text_is_not_tokenized(text_tokenizer: TextTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="more than 10 tokens can hold"):
        encode(text_tokenizer, "x" * 1_000_000, max_tokens=10)


@pytest.mark.parametrize(("content", "message"), [(None, "no tokenizer.json"), ("{", "be read")])
def test_broken_folders(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        load_tokenizer(tmp_path)


def test_truncation_of_the_file_is_off(bundled_model: Path, tmp_path: Path) -> None:
    cutting = Tokenizer.from_file(str(bundled_model / "tokenizer.json"))
    cutting.enable_truncation(4)
    cutting.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert len(encode(tokenizer, "one two three four five six seven")) == 7
