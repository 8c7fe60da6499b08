"""What several tests of workers begin with."""

from collections.abc import AsyncIterator

import pytest_asyncio
from worker_trio import Trio, trio


@pytest_asyncio.fixture
async def three() -> AsyncIterator[Trio]:
    async with trio() as started:
        yield started
