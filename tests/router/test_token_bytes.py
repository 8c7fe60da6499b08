"""Both families of decoders give what the tokenizers library gives; others are refused."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE, Unigram

from segue.cluster.errors import ConfigurationError
from segue.router.token_bytes import TokenBytes


def test_sentence_pieces_with_byte_fallback() -> None:
    pieces = ["<unk>", "\u2581Hello", "\u2581", "world", "<0xE2>", "<0x82>", "<0xAC>", "</s>"]
    tokenizer = Tokenizer(Unigram([(piece, 0.0) for piece in pieces], unk_id=0))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokens = TokenBytes(tokenizer)
    ids = [1, 2, 3, 4, 5, 6]
    assert b"".join(tokens[i] for i in ids).decode() == tokenizer.decode(ids) == " Hello world€"
    assert tokens.special_ids == {7}


def test_an_unknown_decoder_is_refused_by_name() -> None:
    tokenizer = Tokenizer(BPE())
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ConfigurationError, match="WordPiece"):
        TokenBytes(tokenizer)
