"""Only the template writes control tokens; without any in a client's text nothing is changed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from segue.cluster.errors import InvalidRequest
from segue.router.control_tokens import MAX_DEPTH, ControlTokens

START, END = "<|im_start|>", "<|im_end|>"
WORDS = [
    "hello",
    " ",
    "\n",
    "  x ",
    "é東",
    "<",
    "a < b",
    "|",
    ">",
    "end",
    "_",
    "12",
    "</",
    "s",
    "[",
]
PIECES = [*WORDS, START, END, "<|", "|>", "<|im_", "im_end|>", "<s>", "</s>", "[INST]", "[/INST]"]
benign = st.lists(st.sampled_from(WORDS), max_size=8).map("".join)
any_text = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def chat_ml(texts: list[str]) -> str:
    return "".join(f"{START}user\n{text}{END}\n" for text in texts)


def llama(texts: list[str]) -> str:
    return "<s>" + "".join(f"[INST] {text.strip()} [/INST]{text}</s>" for text in texts)


def byte_level(bundled_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(bundled_model / "tokenizer.json"))


def sentence_piece(first_only: bool) -> Tokenizer:
    """As Llama 2 and Mistral have them: a space before the text, or before each piece of it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if first_only:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    tokenizer.add_special_tokens(
        [
            *("<s>", "</s>"),
            AddedToken("[INST]", rstrip=True),
            AddedToken("[/INST]", lstrip=True, normalized=True),
        ]
    )
    return tokenizer


FAMILIES: dict[str, tuple[Callable[[Path], Tokenizer], Callable[[list[str]], str]]] = {
    "byte level": (byte_level, chat_ml),
    "space before the first": (lambda _: sentence_piece(True), llama),
    "space before each": (lambda _: sentence_piece(False), llama),
}


class Family:
    """The library's own answers beside ours, and a template."""

    def __init__(self, name: str, folder: Path) -> None:
        make, self.render = FAMILIES[name]
        text = make(folder).to_str()
        self.library, tokenizer = Tokenizer.from_str(text), Tokenizer.from_str(text)
        self.control = ControlTokens(tokenizer)
        self.special = {
            i for i, t in self.library.get_added_tokens_decoder().items() if t.content in PIECES
        }

    def encode(self, texts: list[str]) -> list[int]:
        guarded: list[str] = self.control.guard(texts, "texts")
        rendered = self.render(guarded)
        assert self.control.plain(rendered) == self.render(texts)
        return list(self.control.encode(rendered, False))

    def control_tokens(self, ids: list[int]) -> list[int]:
        return [token_id for token_id in ids if token_id in self.special]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, bundled_model: Path) -> Family:
    return Family(request.param, bundled_model)


@pytest.fixture(scope="module")
def chat(bundled_model: Path) -> Family:
    return Family("byte level", bundled_model)


@given(texts=st.lists(benign, max_size=3))
def test_other_text_is_encoded_as_ever(family: Family, texts: list[str]) -> None:
    expected = family.library.encode(family.render(texts), add_special_tokens=False).ids
    assert family.encode(texts) == expected


@given(texts=st.lists(any_text, max_size=3))
def test_only_the_template_writes_control_tokens(family: Family, texts: list[str]) -> None:
    ids = family.encode(texts)
    bare = family.encode(["" for _ in texts])
    assert family.control_tokens(ids) == family.control_tokens(bare)


@given(texts=st.lists(any_text, max_size=3))
def test_the_text_is_the_clients(chat: Family, texts: list[str]) -> None:
    """And it is cut into tokens as if there were no control tokens at all."""
    ids = chat.encode(texts)
    expected: list[int] = []
    chat.library.encode_special_tokens = True
    for text in texts:
        start, end = chat.library.token_to_id(START), chat.library.token_to_id(END)
        between, line = (chat.library.encode(part).ids for part in (f"user\n{text}", "\n"))
        assert start is not None and end is not None
        expected += [start, *between, end, *line]
    assert ids == expected
    assert chat.library.decode(ids, skip_special_tokens=False) == chat.render(texts)


@given(texts=st.lists(any_text, min_size=2, max_size=4))
def test_texts_side_by_side_do_not_make_one_together(chat: Family, texts: list[str]) -> None:
    guarded = chat.control.guard(texts, "texts")
    assert not chat.control_tokens(list(chat.control.encode("".join(guarded), False)))


def test_values_of_all_kinds_are_guarded(chat: Family) -> None:
    value = {"a": [END, {END: 1}], "type": "function", "n": None, "b": True, "f": 1.5}
    guarded = chat.control.guard(value, "x")
    assert END not in str(guarded)
    assert {key: guarded[key] for key in ("type", "n", "b", "f")} == {
        key: value[key] for key in ("type", "n", "b", "f")
    }
    deep: list[object] = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested"):
        chat.control.guard(deep, "x")
