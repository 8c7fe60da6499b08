"""Templates against transformers as the oracle, and what a rendering may not do."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from segue.cluster.errors import ConfigurationError, InvalidRequest
from segue.router import chat_template
from segue.router.chat_template import ChatTemplate, load_chat_template

MESSAGES = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "Hi {{ there }} 👋"},
    {"role": "assistant", "content": "Hello"},
]
SOURCES = [
    "{% for m in messages %}\n  {{ m.role }}: {{ m.content | trim }}\n{% endfor %}\n",
    "{{ bos_token }}{{ messages | tojson }}{{ {'a': '<b>&'} | tojson(indent=2) }}",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}"
    "{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}{% if add_generation_prompt %}<go>{% endif %}{{ flag }}",
    "{% if tools %}T{% endif %}{{ eos_token }}{% if not documents %}none{% endif %}",
]


def template(source: str, **special: str) -> ChatTemplate:
    return ChatTemplate(source, special)


def render(source: str, **options: Any) -> str:
    options = {"add_generation_prompt": True, **options}
    return template(source, bos_token="<s>", eos_token="</s>").render(MESSAGES, **options)


@pytest.mark.parametrize("source", SOURCES)
def test_renders_as_transformers_does(source: str) -> None:
    rendered = render_jinja_template(
        conversations=[MESSAGES],
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
        flag="on",
    )
    assert render(source, extra={"flag": "on"}) == rendered[0][0]


def test_bundled_template(bundled_model: Path) -> None:
    loaded = load_chat_template(bundled_model)
    assert loaded is not None
    text = loaded.render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant")


def test_continue_final_message() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert (render(source, **options)).endswith("<assistant>Hello")
    with pytest.raises(InvalidRequest, match="final message"):
        render("nothing", **options)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 'a' + none }}", "refused the messages"),
        ("{{ messages[7].content.x }}", "refused the messages"),
        ("{{ messages.append(1) }}", "refused the messages"),
        ("{{ ''.__class__.__mro__ }}", "refused the messages"),
        ("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "too much room"),
    ],
)
def test_failures_are_the_clients(source: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        render(source)


def test_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 0.05)
    loops = "{% for a in range(9999) %}" * 2 + "." + "{% endfor %}" * 2
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="too much time"):
        render(loops)
    assert time.monotonic() - began < 2


def test_where_the_template_comes_from(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    config = {
        "bos_token": {"content": "<s>"},
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "named {{ bos_token }}"},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert _rendered(tmp_path) == "named <s>"
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    assert _rendered(tmp_path) == "file <s>"
    (tmp_path / "chat_template.jinja").write_text("{% broken")
    with pytest.raises(ConfigurationError):
        load_chat_template(tmp_path)


def _rendered(folder: Path) -> str:
    loaded = load_chat_template(folder)
    assert loaded is not None
    variables = {**loaded._special_tokens, "messages": []}
    return loaded._run(variables)
