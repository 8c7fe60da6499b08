"""The tokens that end an answer: what the model's configurations name, and its tokenizer's own.

A chat model's config.json often still has the end of the base model; the tokenizer has the token
with which its chat template ends a turn.
"""

from pathlib import Path
from typing import Any

from segue.workers.models.json_file import read_json


def tokenizer_end(folder: Path) -> int | None:
    """The id of tokenizer_config.json's eos_token; None if there is none. Raises
    ConfigurationError for files that are no JSON."""
    source = folder / "tokenizer_config.json"
    config = read_json(source) if source.exists() else {}
    name = config.get("eos_token")
    if isinstance(name, dict):
        name = name.get("content")
    if not isinstance(name, str):
        return None
    added = config.get("added_tokens_decoder")
    for token_id, token in added.items() if isinstance(added, dict) else ():
        if _content(token) == name and str(token_id).isdigit():
            return int(token_id)
    return _in_vocabulary(folder / "tokenizer.json", name)


def _in_vocabulary(source: Path, name: str) -> int | None:
    if not source.exists():
        return None
    tokenizer = read_json(source)
    for token in tokenizer.get("added_tokens") or ():
        if _content(token) == name and isinstance(token.get("id"), int):
            return int(token["id"])
    model = tokenizer.get("model")
    vocabulary: Any = model.get("vocab") if isinstance(model, dict) else None
    found = vocabulary.get(name) if isinstance(vocabulary, dict) else None
    return found if isinstance(found, int) else None


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else None
