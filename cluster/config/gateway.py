"""The section `gateway`: where it listens, what it admits, and how it recovers requests."""

from typing import Annotated, Literal

from pydantic import Field

from segue.cluster.config.byte_size import ByteCount
from segue.cluster.config.client_bounds import ClientBounds
from segue.cluster.config.section import Section

LadderName = Literal["full", "no_local_prefill", "no_local_decode", "pairs_only"]

CacheIsolation = Literal["per_key", "shared"]


class AdmissionConfig(Section):
    max_queued_requests: Annotated[int, Field(ge=1)] = Field(
        default=256,
        description="requests in the gateway at once; more are answered overload_status",
    )
    overload_status: Literal[429, 503] = 429
    retry_after_s: Annotated[int, Field(ge=1)] = 1
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    max_body_bytes: Annotated[ByteCount, Field(ge=1024)] = 8 * 2**20
    default_max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="most tokens of a chat answer whose request does not say max_tokens; absent: "
        "what the model's context has left",
    )


class RecoveryConfig(Section):
    max_attempts: Annotated[int, Field(ge=1)] = Field(
        default=4,
        description="tries at one request, the first one included; that a worker takes nothing "
        "more because it is leaving, or full, is no try",
    )
    full_wait_s: Annotated[float, Field(ge=0)] = Field(
        default=10.0,
        description="how long a request waits while every worker for it is full; then it is "
        "answered overload_status with Retry-After",
    )
    worker_wait_s: Annotated[float, Field(ge=0)] = Field(
        default=20.0, description="how long a started request waits for any worker to come back"
    )
    rebind_wait_s: Annotated[float, Field(ge=0)] = Field(
        default=1.0,
        description="a request that waits for room at its decode worker asks another one that "
        "seems to have some, for this long; 0: it stays where it is",
    )
    ladder: LadderName = Field(
        default="full",
        description="what a request may fall back to when there is no pair of workers for it: a "
        "decode worker that reads the prompt itself, then a prefill worker that writes the answer; "
        "without the first, without the second, or neither. At the end of the ladder it is "
        "answered 503 with Retry-After",
    )


class GatewayConfig(Section):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    api_keys_file: str | None = Field(
        default=None, description="one key a line; absent: no key is asked"
    )
    admin_keys_file: str | None = Field(
        default=None,
        description="one key a line, none of them in api_keys_file: they do what the others do, "
        "and give the orders of /admin. Absent: orders are taken only without API keys, and only "
        "if host is a loopback address",
    )
    cache_isolation: CacheIsolation = Field(
        default="per_key",
        description="whose cached prefixes a request may use: those of its own API key, or shared, "
        "all; a client sees from cached_tokens and from the time what others have asked. Without "
        "API keys all are shared. cache_salt divides them further",
    )
    access_log: bool = Field(
        default=True, description="a line a request in the log, and one every 10 s with traffic"
    )
    drain_timeout_s: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="how long running requests may take when the gateway is to stop"
    )
    text_processes: Annotated[int, Field(ge=1, le=64)] = Field(
        default=2,
        description="processes that check bodies, render chat templates and tokenize",
    )
    admission: AdmissionConfig = AdmissionConfig()
    client_bounds: ClientBounds = Field(
        default=ClientBounds(), description="how much a request may ask for at the cost of others"
    )
    recovery: RecoveryConfig = RecoveryConfig()
