"""The section `control.tls`: by which certificates the cluster's processes know each other."""

from pydantic import Field

from segue.cluster.config.section import Section


class TlsConfig(Section):
    """Every process is server and client, with one certificate for both."""

    ca_file: str = Field(description="PEM; whose certificates are trusted: a CA of the cluster's")
    cert_file: str = Field(description="PEM; at this path on every node, as the other two")
    key_file: str = Field(description="PEM, without a passphrase")
    name: str = Field(
        default="segue",
        min_length=1,
        description="the DNS name that every certificate holds, whatever the node's address",
    )
