"""Keys and routes: who may ask, who may give orders, and that no route is open by oversight."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.requests import Request
from starlette.responses import Response
from tests.router.conftest import Gateway, gateway_config, serving

from segue.cluster.config.gateway import GatewayConfig
from segue.cluster.errors import ConfigurationError
from segue.cluster.loopback import is_loopback
from segue.cluster.step_trace import StepRecord
from segue.router.access import ADMIN_PATHS, KEY_PATHS, OPEN_PATHS, Access, access_of
from segue.router.api_keys import load_keys
from segue.router.operations import Operations

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK, ORDER = "sk-ask", "sk-order"
LET_THROUGH = 400  # an order without a body gets no further than that
OPEN = {"/live", "/ready", "/health", "/ping", "/version", "/metrics"}
DESCRIPTIONS = {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}


class NoWorkers(Operations):
    def __init__(self) -> None:
        """No order that these tests give gets this far."""

    @property
    def running(self) -> Collection[str]:
        return ()


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


async def no_steps(worker: str, last: int) -> list[StepRecord]:
    return []


def guarded(folder: Path, **settings: Any) -> GatewayConfig:
    """`api`, `admin`: the keys of each kind, if there are any."""
    for kind in ("api", "admin"):
        if (key := settings.pop(kind, None)) is not None:
            file = folder / kind
            file.write_text(key)
            settings[f"{kind}_keys_file"] = str(file)
    return gateway_config(**settings)


def routes(gateway: Gateway) -> list[tuple[str, set[str]]]:
    """Every path that there is, with its methods."""
    app = cast(FastAPI, gateway.server.config.app)
    return [
        (str(route.path).replace("{name:path}", "some/model"), set(route.methods or ()))
        for route in iter_route_contexts(app.routes)
    ]


async def test_what_is_open_is_on_a_list_and_every_other_route_asks_for_its_key(
    bundled_model: Path, tmp_path: Path
) -> None:
    config = guarded(tmp_path, api=ASK, admin=ORDER)
    settings: dict[str, Any] = {"config": config, "operations": NoWorkers(), "trace": no_steps}
    async with serving(bundled_model, **settings) as gateway:
        found = routes(gateway)
        assert OPEN_PATHS | KEY_PATHS | ADMIN_PATHS <= {path for path, _ in found}
        for path, methods in found:
            access = access_of(path)
            assert access is not Access.CLOSED, f"{path} is on no list: nobody could use it"
            assert (access is Access.OPEN) == (path in OPEN | DESCRIPTIONS), path
            assert (access is Access.ADMIN) == path.startswith("/admin"), path
            for method in sorted(methods):
                statuses = {}
                for key in (None, "sk-else", ASK, ORDER):
                    answer = await gateway.client.request(method, path, headers=bearer(key))
                    statuses[key] = answer.status_code
                if access is Access.OPEN:
                    assert set(statuses.values()) == {200}, (path, statuses)
                    continue
                assert statuses[None] == statuses["sk-else"] == 401, (path, statuses)
                assert (statuses[ASK] == 403) == (access is Access.ADMIN), (path, statuses)
                assert statuses[ORDER] not in (401, 403), (path, statuses)
        assert gateway.generator.requests == []


@pytest.mark.parametrize("path", ["/v1/secret", "/debug/dump", "/admin/kill", "/live/more"])
async def test_a_route_on_no_list_is_closed_to_everybody(
    bundled_model: Path, tmp_path: Path, path: str
) -> None:
    async def secret(request: Request) -> Response:
        return Response("secret")

    for config, keys in (
        (guarded(tmp_path), (None,)),
        (guarded(tmp_path, api=ASK, admin=ORDER), (None, ASK, ORDER)),
    ):
        async with serving(bundled_model, config=config) as gateway:
            cast(FastAPI, gateway.server.config.app).add_route(path, secret)
            for key in keys:
                answer = await gateway.client.get(path, headers=bearer(key))
                closed = 401 if config.api_keys_file and key is None else 404
                assert answer.status_code == closed
                assert answer.json()["error"]["code"] == closed


@pytest.mark.parametrize(
    ("settings", "statuses"),
    [
        ({}, {None: LET_THROUGH}),
        ({"host": "localhost"}, {None: LET_THROUGH}),
        ({"host": "0.0.0.0"}, {None: 403, ASK: 403}),
        ({"host": "some.name"}, {None: 403}),
        ({"api": ASK}, {None: 401, ASK: 403}),
        ({"api": ASK, "host": "0.0.0.0"}, {None: 401, ASK: 403}),
        ({"admin": ORDER}, {None: 401, ASK: 401, ORDER: LET_THROUGH}),
        ({"admin": ORDER, "host": "::"}, {None: 401, ASK: 401, ORDER: LET_THROUGH}),
        ({"api": ASK, "admin": ORDER}, {None: 401, ASK: 403, ORDER: LET_THROUGH}),
    ],
)
async def test_who_may_give_orders(
    bundled_model: Path, tmp_path: Path, settings: dict[str, str], statuses: dict[str | None, int]
) -> None:
    config = guarded(tmp_path, **settings)
    async with serving(bundled_model, config=config, operations=NoWorkers()) as gateway:
        for path in ("/admin/drain", "/admin/migrate"):
            for key, status in statuses.items():
                answer = await gateway.client.post(path, json={}, headers=bearer(key))
                assert answer.status_code == status, (path, key)
                if status == 403:
                    error = answer.json()["error"]
                    named = "an admin key" if config.admin_keys_file else "admin_keys_file"
                    assert error["type"] == "PermissionDeniedError" and named in error["message"]
        asked = await gateway.client.get("/v1/models", headers=bearer(settings.get("admin")))
        no_key = "api" in settings and "admin" not in settings
        assert asked.status_code == (401 if no_key else 200)


async def test_api_keys(bundled_model: Path, tmp_path: Path) -> None:
    config = guarded(tmp_path, api="sk-one\n\n  sk-two  \n")
    async with serving(bundled_model, config=config) as gateway:
        for header in ({}, {"Authorization": "Bearer sk-on"}, {"Authorization": "sk-one"}):
            response = await gateway.client.get("/v1/models", headers=header)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["code"] == 401 and error["type"] == "AuthenticationError"
        for key in ("sk-one", "sk-two"):
            header = {"Authorization": f"bearer {key}"}
            assert (await gateway.client.get("/v1/models", headers=header)).status_code == 200


@pytest.mark.parametrize("kind", ["api", "admin"])
async def test_a_key_file_without_keys_does_not_open_the_door(tmp_path: Path, kind: str) -> None:
    (tmp_path / "keys").write_text("\n \n")
    for path in (tmp_path / "keys", tmp_path / "absent"):
        with pytest.raises(ConfigurationError, match=f"gateway.{kind}_keys_file"):
            load_keys(gateway_config(**{f"{kind}_keys_file": str(path)}))
    assert load_keys(gateway_config()).admin is None


async def test_a_key_of_both_kinds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="gateway.admin_keys_file"):
        load_keys(guarded(tmp_path, api=f"sk-1\n{ASK}", admin=f"{ASK}\nsk-2"))


async def test_only_addresses_of_this_machine_are_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "", "10.0.0.1", "a.localhost", "host"]))
