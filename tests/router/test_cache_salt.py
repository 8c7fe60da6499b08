"""Cached prefixes of one API key are out of the reach of another."""

from pathlib import Path
from typing import Any

import pytest
from tests.router.conftest import Gateway, gateway_config, serving

from segue.router.cache_salt import tenant_of, tenant_salt

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def keys(tmp_path: Path) -> str:
    (tmp_path / "keys").write_text("sk-one\nsk-two\n")
    return str(tmp_path / "keys")


async def salt_with(gateway: Gateway, key: str, chat: bool = False, **fields: Any) -> str:
    """The salt of a request's KV blocks, as the workers are told it."""
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    headers = {"Authorization": f"Bearer {key}"}
    answer = await gateway.client.post(path, json={**body, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return gateway.generator.requests[-1].cache_salt


async def test_keys_share_nothing(bundled_model: Path, keys: str) -> None:
    config = gateway_config(api_keys_file=keys)
    async with serving(bundled_model, config=config) as gateway:
        one, two = await salt_with(gateway, "sk-one"), await salt_with(gateway, "sk-two")
        assert one != two and "" not in (one, two)
        # Chat and completions share what is equal.
        assert await salt_with(gateway, "sk-one", chat=True) == one
        red = await salt_with(gateway, "sk-one", cache_salt="red")
        blue = await salt_with(gateway, "sk-one", cache_salt="blue")
        foreign = await salt_with(gateway, "sk-two", cache_salt="red")
        stolen = await salt_with(gateway, "sk-two", cache_salt=one)
        assert len({one, two, red, blue, foreign, stolen}) == 6
        assert not any("sk-" in request.cache_salt for request in gateway.generator.requests)
        samples: dict[str, Any] = {"n": 3, "temperature": 1}
        assert await salt_with(gateway, "sk-one", **samples) == one
        assert {request.cache_salt for request in gateway.generator.requests[-3:]} == {one}
    async with serving(bundled_model, config=config) as another:  # the cache outlives gateways
        assert await salt_with(another, "sk-one") == one


async def test_sharing_is_a_choice(bundled_model: Path, keys: str) -> None:
    config = gateway_config(api_keys_file=keys, cache_isolation="shared")
    async with serving(bundled_model, config=config) as gateway:
        assert await salt_with(gateway, "sk-one") == await salt_with(gateway, "sk-two") == ""
        assert await salt_with(gateway, "sk-one", cache_salt="red") == "red"


async def test_without_keys_only_the_client_divides(gateway: Gateway) -> None:
    assert await salt_with(gateway, "anything") == ""
    assert await salt_with(gateway, "anything", cache_salt="red") == "red"


async def test_salts_stay_the_same_from_release_to_release() -> None:
    """Else the gateways of a fleet would not find what was cached for the others."""
    assert tenant_salt(tenant_of(b"sk-one"), "") == (
        "6548d3b24870efdb7b6dacabb62280c714abccddbe2ab83a59974e6497c7fedd"
    )
