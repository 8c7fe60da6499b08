"""Prompts that the tokenizer knows but the model does not."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.router.conftest import CARD, EOS, saying, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_token_beyond_the_models_vocabulary_never_reaches_a_worker(
    bundled_model: Path,
) -> None:
    narrow = replace(CARD, vocab_size=1000)
    async with serving(bundled_model, saying(EOS), card=narrow) as gateway:
        ids = (await gateway.client.post("/tokenize", json={"prompt": "a"})).json()["tokens"]
        assert max(ids) < 1000
        assert (await gateway.complete(prompt="a")).status_code == 200
        bodies = (
            ("/v1/completions", {"prompt": "hello"}, "prompt"),
            ("/v1/completions", {"prompt": ["a", "hello"]}, "prompt"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "messages"),
        )
        before = len(gateway.generator.requests)
        for path, body, param in bodies:
            answer = await gateway.client.post(path, json=body)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param
        assert len(gateway.generator.requests) == before
