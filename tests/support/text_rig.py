"""Model folders whose chat template never ends, and a watch on how long an event loop stands."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

# Without a word of output. A power is one call into C, which no Python code can interrupt. What
# depends on a message is not computed when the template is compiled.
ENDLESS_TEMPLATE = """
{%- for message in messages %}
{%- set n = message.content | length %}
{%- if message.content == 'loop' %}
{%- for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}
{%- elif message.content == 'power' %}{% set x = 3 ** (10 ** (n + 4)) %}
{%- elif message.content == 'memory' %}{{ ('x' * (n * 10 ** 9)) | length }}
{%- else %}{{ message.content }}{% endif %}
{%- endfor %}"""


def endless_model(bundled_model: Path, folder: Path) -> Path:
    (folder / "tokenizer.json").symlink_to(bundled_model / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(ENDLESS_TEMPLATE)
    return folder


@dataclass
class Standstill:
    """The longest time for which the event loop ran nothing."""

    seconds: float = 0.0


@asynccontextmanager
async def standstill() -> AsyncIterator[Standstill]:
    longest = Standstill()

    async def tick() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            longest.seconds = max(longest.seconds, time.perf_counter() - before - 0.005)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        yield longest
        await asyncio.sleep(0.01)  # what came last is measured too
    finally:
        ticking.cancel()
