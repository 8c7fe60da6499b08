"""What is known of the served model where text becomes tokens: tokenizer, template, limits."""

from dataclasses import dataclass
from pathlib import Path

from segue.router.chat_template import ChatTemplate, load_chat_template
from segue.router.control_tokens import ControlTokens
from segue.router.generation import ModelCard
from segue.router.tokenizer import TextTokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class TextSource:
    """From which any process can load the same TextModel."""

    folder: Path
    card: ModelCard


@dataclass(frozen=True, slots=True)
class TextModel:
    card: ModelCard
    tokenizer: TextTokenizer
    control: ControlTokens
    chat_template: ChatTemplate | None  # None: the model has none, chat is refused


def load_text_model(source: TextSource) -> TextModel:
    """Raises ConfigurationError if the model's folder can not be used."""
    tokenizer = load_tokenizer(source.folder)
    template = load_chat_template(source.folder)
    return TextModel(source.card, tokenizer, ControlTokens(tokenizer.library), template)
