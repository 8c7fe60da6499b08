"""The client end of every internal connection: token, deadlines, keepalive, typed errors."""

from __future__ import annotations  # grpc classes are generic in their stubs only

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeVar

import grpc.aio

from segue.cluster.errors import ConnectionLost, DeadlineExceeded, StaleKind, StaleReference
from segue.cluster.rpc.security import TOKEN_ALONE, Security
from segue.cluster.rpc.status import from_rpc_error

MAX_MESSAGE_BYTES = 64 * 2**20
TOKEN_KEY = "segue-token"
# A peer that is cut off without a word is noticed after time + timeout: 4.5 s.
KEEPALIVE_TIME_MS = 2500
KEEPALIVE_TIMEOUT_MS = 2000

COMMON_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Without it a keepalive ping is given a minute (seen in grpc 1.85), whatever is said above.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # no limit: idle streams must be watched too
)
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # cluster traffic never leaves through a proxy
    ("grpc.use_local_subchannel_pool", 1),  # no backoff inherited from another channel
)

Query = TypeVar("Query")
Reply = TypeVar("Reply")


class RpcChannel:
    """A lazy connection to one address. Stubs are built on `raw`, calls are made through here.

    Every failure is raised as a SegueError. A call made on `raw` itself lacks the token and is
    refused by the peer.
    """

    def __init__(
        self, address: str, token: str, on_broken: Callable[[], None], security: Security
    ) -> None:
        self.address = address
        self._on_broken = on_broken
        self.raw = _raw_channel(address, security)
        self._metadata = ((TOKEN_KEY, token),)
        self.num_calls = 0  # under way

    async def unary(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Query, Reply],
        request: Query,
        *,
        deadline_s: float,
    ) -> Reply:
        """One question, one answer, within `deadline_s`."""
        self.num_calls += 1
        try:
            return await method(request, timeout=deadline_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            typed = from_rpc_error(error)
            stranger = isinstance(typed, StaleReference) and typed.stale is StaleKind.INCARNATION
            if stranger or isinstance(typed, ConnectionLost):
                self._on_broken()
            raise typed from error
        except grpc.aio.UsageError as error:
            raise ConnectionLost(f"the channel is closed: {error}") from error
        except asyncio.CancelledError as error:
            raise _unless_we_are_cancelled(error) from None
        finally:
            self.num_calls -= 1

    def stream(
        self,
        method: grpc.aio.UnaryStreamMultiCallable[Query, Reply],
        request: Query,
        *,
        silence_s: float | None,
    ) -> AsyncGenerator[Reply, None]:
        """Yield a stream's messages; `aclose()` cancels it.

        `silence_s` bounds the wait for each message. None is for streams that may rightly be
        silent for long: then keepalive alone ends the wait for a peer that is gone.
        """
        call = method(request, metadata=self._metadata)
        return _messages(call, silence_s)

    def exchange(
        self,
        method: grpc.aio.StreamStreamMultiCallable[Query, Reply],
        requests: AsyncIterator[Query],
        *,
        silence_s: float | None,
    ) -> AsyncGenerator[Reply, None]:
        """Send `requests` as they come and yield the answers, as `stream` does."""
        call = method(requests, metadata=self._metadata)
        return _messages(call, silence_s)

    async def close(self, grace_s: float | None = None) -> None:
        """Calls that are under way get `grace_s` to end."""
        await self.raw.close(grace_s)


def open_channel(
    address: str,
    token: str,
    on_broken: Callable[[], None] = lambda: None,
    *,
    security: Security = TOKEN_ALONE,
) -> RpcChannel:
    """Open a channel to `address`; nothing is sent before the first call.

    `on_broken` is called when nobody answers there, or another life than the one that was meant.
    Until it is closed the channel goes on trying to connect."""
    return RpcChannel(address, token, on_broken, security)


def _raw_channel(address: str, security: Security) -> grpc.aio.Channel:
    tls = security.tls
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    expected = ("grpc.ssl_target_name_override", tls.name)
    options = (*CHANNEL_OPTIONS, expected)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


async def _messages(
    call: grpc.aio.UnaryStreamCall[Query, Reply] | grpc.aio.StreamStreamCall[Query, Reply],
    silence_s: float | None,
) -> AsyncGenerator[Reply, None]:
    messages = aiter(call)
    try:
        while True:
            async with asyncio.timeout(silence_s):
                message = await anext(messages)
            yield message
    except StopAsyncIteration:
        return
    except TimeoutError as error:
        raise DeadlineExceeded(f"no message for {silence_s} s") from error
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.CancelledError as error:
        raise _unless_we_are_cancelled(error) from None
    finally:
        call.cancel()


def _unless_we_are_cancelled(error: asyncio.CancelledError) -> BaseException:
    """A channel that is closed cancels its calls, which must not pass for a cancellation of
    whoever waits for one: that one would end as if it had been told to, without a word."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        return error
    return ConnectionLost("the channel was closed")
