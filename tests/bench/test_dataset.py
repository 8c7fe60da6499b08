"""Prompts: exact lengths, nothing shared but the prefix, the same again from the same seed."""

from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from segue.bench.dataset import (
    WORDS,
    PromptShape,
    load_tokenizer,
    ordinary_token_ids,
    text_prompts,
    token_prompts,
)
from segue.cluster.errors import ConfigurationError

SHAPES = st.integers(1, 12).flatmap(
    lambda tokens: st.builds(PromptShape, st.just(tokens), st.integers(0, tokens))
)


@given(st.integers(), st.integers(0, 8), SHAPES)
def test_token_prompts_share_the_prefix_and_nothing_more(
    seed: int, count: int, shape: PromptShape
) -> None:
    prompts = token_prompts(Random(seed), count, shape, range(100, 120))
    assert [len(prompt) for prompt in prompts] == [shape.num_tokens] * count
    assert all(100 <= token < 120 for prompt in prompts for token in prompt)
    shared = shape.shared_prefix_tokens
    for left, right in combinations(prompts, 2):
        assert left[:shared] == right[:shared]
        assert shared == shape.num_tokens or left[shared] != right[shared]
    assert prompts == token_prompts(Random(seed), count, shape, range(100, 120))


def test_more_prompts_than_ids_are_possible() -> None:
    assert len(token_prompts(Random(1), 50, PromptShape(3), [7, 8])) == 50


@given(st.integers(), SHAPES)
def test_text_has_a_word_for_each_token(seed: int, shape: PromptShape) -> None:
    first, second = (text.split() for text in text_prompts(Random(seed), 2, shape))
    assert len(first) == len(second) == shape.num_tokens
    assert first[: shape.shared_prefix_tokens] == second[: shape.shared_prefix_tokens]


@pytest.fixture
def tokenizer() -> Tokenizer:
    """Knows single letters only; any longer word is one unknown token."""
    letters = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz?")}
    tokenizer = Tokenizer(WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def test_a_tokenizer_makes_text_exact(tokenizer: Tokenizer) -> None:
    (text,) = text_prompts(Random(0), 1, PromptShape(5), tokenizer)
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) == 5


def test_special_tokens_are_no_prompt(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        ids = ordinary_token_ids(load_tokenizer(path))
        assert ids == list(range(27))


def test_a_bad_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no tokenizer at .*tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is not a tokenizer"):
        load_tokenizer(tmp_path)


def test_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS)
