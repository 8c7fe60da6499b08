"""Mutual TLS between processes: who gets through, what is refused, what is told of bad files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from certificates import Authority, authority

from segue.cluster.config.control import ControlConfig
from segue.cluster.config.file import parse_config
from segue.cluster.config.tls import TlsConfig
from segue.cluster.errors import ConfigurationError, SegueError
from segue.cluster.rpc import serving_pb2 as pb
from segue.cluster.rpc import serving_pb2_grpc as pb_grpc
from segue.cluster.rpc.channel import open_channel
from segue.cluster.rpc.security import TOKEN_ALONE, MutualTls, Security, load_security
from segue.cluster.rpc.server import RpcServer, start_server

TOKEN = "cluster-token-of-tests"


class Counting(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Answers Drain, whoever is let through to it."""

    def __init__(self) -> None:
        self.calls = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            self._drain, pb.DrainRequest.FromString, pb.DrainReply.SerializeToString
        )

    async def _drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainReply:
        self.calls += 1
        return pb.DrainReply()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours") / "ca")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("foreign") / "ca")


def security(tls: TlsConfig) -> Security:
    return load_security(ControlConfig(tls=tls))


async def serve(service: Counting, protection: Security, host: str = "127.0.0.1") -> RpcServer:
    def register(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((service,))

    return await start_server(token=TOKEN, host=host, register=register, security=protection)


async def call(address: str, protection: Security) -> None:
    channel = open_channel(address, TOKEN, security=protection)
    try:
        stub = pb_grpc.WorkerStub(channel.raw)
        await channel.unary(stub.Drain, pb.DrainRequest(), deadline_s=5)
    finally:
        await channel.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_processes_with_certificates_of_one_ca_reach_each_other_at_any_address(
    ours: Authority, host: str
) -> None:
    service = Counting()
    server = await serve(service, security(ours.certificate("server")), host)
    await call(server.address, security(ours.certificate("client")))
    assert service.calls == 1
    await server.stop()


async def test_whoever_has_the_token_but_no_certificate_is_not_heard(
    ours: Authority, foreign: Authority
) -> None:
    service = Counting()
    mine = security(ours.certificate("server"))
    server = await serve(service, mine)
    assert mine.tls is not None
    theirs = security(foreign.certificate("stranger")).tls
    assert theirs is not None
    borrowed_ca = MutualTls(mine.tls.ca, theirs.cert, theirs.key, "segue")
    for stranger in (TOKEN_ALONE, Security(borrowed_ca)):
        with pytest.raises(SegueError):
            await call(server.address, stranger)
    anonymous = grpc.aio.secure_channel(
        server.address,
        grpc.ssl_channel_credentials(mine.tls.ca),
        options=(("grpc.ssl_target_name_override", "segue"),),
    )
    with pytest.raises(grpc.aio.AioRpcError):
        drain = pb_grpc.WorkerStub(anonymous).Drain
        await drain(pb.DrainRequest(), timeout=5, metadata=(("segue-token", TOKEN),))
    assert service.calls == 0
    await call(server.address, mine)
    assert service.calls == 1
    await anonymous.close(None)
    await server.stop()


async def test_the_token_is_told_to_no_server_without_the_name_or_the_ca(
    ours: Authority, foreign: Authority
) -> None:
    client = security(ours.certificate("client"))
    assert client.tls is not None
    other_name = ours.certificate("other", name="elsewhere").model_copy(
        update={"name": "elsewhere"}
    )
    trusting = security(foreign.certificate("foreign")).tls
    assert trusting is not None
    foreign_server = MutualTls(client.tls.ca, trusting.cert, trusting.key, "segue")
    for impostor in (security(other_name), Security(foreign_server)):
        service = Counting()
        server = await serve(service, impostor)
        with pytest.raises(SegueError):
            await call(server.address, client)
        assert service.calls == 0
        await server.stop()


async def test_the_token_is_still_asked_for(ours: Authority) -> None:
    mine = security(ours.certificate("server"))
    server = await serve(service := Counting(), mine)
    channel = open_channel(server.address, "another-token", security=mine)
    with pytest.raises(SegueError, match="token"):
        await channel.unary(pb_grpc.WorkerStub(channel.raw).Drain, pb.DrainRequest(), deadline_s=5)
    assert service.calls == 0
    await channel.close()
    await server.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.255.255.1"])
async def test_beyond_loopback_a_server_needs_certificates_or_permission(
    ours: Authority, host: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await serve(Counting(), load_security(ControlConfig()), host)
    assert "control.tls" in str(refused.value)
    assert "control.insecure: true" in str(refused.value)
    load_security(ControlConfig(insecure=True)).check_host(host)
    security(ours.certificate("server")).check_host(host)


def test_bad_certificates_are_told_by_setting_before_anything_starts(
    ours: Authority, foreign: Authority, tmp_path: Path
) -> None:
    good = ours.certificate("good")
    garbage = tmp_path / "garbage"
    garbage.write_text("no certificate")
    wrong = {
        "ca_file can not be read": {"ca_file": "/nowhere"},
        "key_file can not be read": {"key_file": str(tmp_path)},
        "ca_file holds no certificate": {"ca_file": str(garbage)},
        "cert_file and key_file are no": {"cert_file": str(garbage)},
        "a passphrase": dict(ours.certificate("locked", passphrase="four words")),
        "certificate with its key": {"key_file": ours.certificate("else").key_file},
        "cert_file is not accepted: Hostname mismatch": {"name": "elsewhere"},
        "cert_file is not accepted: unable to get local": {"ca_file": str(foreign.ca_file)},
        "cert_file is not accepted: certificate has expired": dict(
            ours.certificate("old", days=-1)
        ),
    }
    for told, change in wrong.items():
        with pytest.raises(ConfigurationError) as refused:
            security(good.model_copy(update=change))
        assert str(refused.value).startswith("control.tls") and told in str(refused.value)
    assert Path(good.key_file).read_text().splitlines()[1] not in repr(security(good))


def test_tls_and_insecure_exclude_each_other() -> None:
    tls = {"ca_file": "a", "cert_file": "b", "key_file": "c"}
    with pytest.raises(ConfigurationError, match="tls or insecure"):
        parse_config({"control": {"tls": tls, "insecure": True}})
    with pytest.raises(ConfigurationError, match=r"control\.tls\.key_file"):
        parse_config({"control": {"tls": {"ca_file": "a", "cert_file": "b"}}})
