"""How internal connections are protected: by mutual TLS, or by the cluster's token alone.

A process reads its certificates once, when it starts.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from segue.cluster.config.control import ControlConfig
from segue.cluster.config.tls import TlsConfig
from segue.cluster.errors import ConfigurationError
from segue.cluster.loopback import is_loopback

MAX_HANDSHAKE_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class MutualTls:
    """Both ends show a certificate of the same CA, and servers one that holds `name`.

    Workers come and go at any address, so the name is the cluster's and not a node's."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)
    name: str

    def server_credentials(self) -> grpc.ServerCredentials:
        pairs = [(self.key, self.cert)]
        return grpc.ssl_server_credentials(pairs, self.ca, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


@dataclass(frozen=True, slots=True)
class Security:
    """`tls` None: whoever is on the way can read everything, the token too. Then a server listens
    on loopback addresses only, unless `anywhere`."""

    tls: MutualTls | None = None
    anywhere: bool = False

    def check_host(self, host: str) -> None:
        """Raises ConfigurationError if no server may listen there."""
        if self.tls is None and not self.anywhere and not is_loopback(host):
            raise ConfigurationError(
                f"beyond loopback ({host}) the calls between processes need control.tls (ca_file, "
                "cert_file, key_file); control.insecure: true does without, in a network in which "
                "everybody may read prompts and answers and give orders"
            )


TOKEN_ALONE = Security()


def load_security(control: ControlConfig) -> Security:
    """Read the certificates and try them. Raises ConfigurationError that names the setting."""
    if control.tls is None:
        return Security(None, control.insecure)
    tls = MutualTls(
        _read(control.tls, "ca_file"),
        _read(control.tls, "cert_file"),
        _read(control.tls, "key_file"),
        control.tls.name,
    )
    _try(control.tls)
    return Security(tls)


def _read(config: TlsConfig, setting: str) -> bytes:
    try:
        return Path(getattr(config, setting)).read_bytes()
    except OSError as error:
        told = error.strerror or str(error)
        raise ConfigurationError(f"control.tls.{setting} can not be read: {told}") from error


def _try(config: TlsConfig) -> None:
    """Connect to ourselves, in memory: what fails here would fail between all processes."""
    server, client = (
        _context(config, ssl.PROTOCOL_TLS_SERVER),
        _context(config, ssl.PROTOCOL_TLS_CLIENT),
    )
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=config.name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(MAX_HANDSHAKE_ROUNDS):
        try:
            ends = [end for end in ends if not _shakes_hands(end)]
        except ssl.SSLCertVerificationError as error:
            told = error.verify_message
            raise ConfigurationError(f"control.tls.cert_file is not accepted: {told}") from error
        except ssl.SSLError as error:
            raise ConfigurationError(f"control.tls can not be used: {error.reason}") from error
        if not ends:
            return
    raise ConfigurationError("control.tls can not be used: no end of the handshake")


def _context(config: TlsConfig, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(config.ca_file)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError("control.tls.ca_file holds no certificate in PEM") from error
    try:
        # Without the password it would ask for one on the terminal.
        context.load_cert_chain(config.cert_file, config.key_file, password="")
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            "control.tls.cert_file and key_file are no certificate with its key in PEM, without "
            "a passphrase"
        ) from error
    return context


def _shakes_hands(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
