"""Moves KV blocks between processes and machines with NIXL over UCX; the only importer of nixl.

What NIXL (1.5) does and does not promise, found by experiment and in its source:

- Releasing the handle of a read in flight, or removing its peer, makes NIXL report an error at
  once while UCX goes on writing into our memory. So neither is ever done before the read has
  ended; a disconnected peer is only forgotten with its last read.
- A read ends in an error when UCX has declared the endpoint dead and completed its requests.
  Requests of other descriptors of the same read may still be on their way through the queues, so
  an error counts as FAILED only after `SETTLE_SECONDS` in which they were driven to their end.
- A peer that is stopped, or just does not call progress(), leaves reads in flight; when its
  process dies they end in an error. Nothing but that, or closing the transport, ends them.
- NIXL's progress thread would burn a core; without it an idle agent costs nothing.
"""

import importlib
import importlib.util
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from segue.cluster.errors import ConfigurationError, TransferError
from segue.kvtransfer.medium import UNKNOWN_MEDIUM, Medium, medium_of
from segue.kvtransfer.nixl_descriptors import (
    OURSELVES,
    UnitList,
    describe,
    list_units,
    memory_kind,
)
from segue.kvtransfer.nixl_metadata import RegionMetadata
from segue.kvtransfer.transport import (
    ByteRange,
    ReadHandle,
    ReadState,
    check_pairs,
    check_ranges,
)
from segue.kvtransfer.ucx_endpoints import UcxEndpoints

SETTLE_SECONDS = 0.1
MAX_READS = 4096  # in flight at once
MAX_RANGES = 16384  # of one read
PACKAGES = ("nixl", "nixl_cu12")
HOW_TO_INSTALL = "to install it: pip install 'segue[nixl]'"


@dataclass(slots=True)
class _Read:
    peer: str
    request: Any  # nixl_xfer_handle
    num_bytes: int
    failed_at: float | None = None


class NixlTransport:
    """The transport of one worker. `agent_name` must be unique, as an incarnation is.

    `unit_bytes`: the size of a block. Reads of whole blocks are then cheaper to begin.
    """

    name = "nixl/ucx"

    def __init__(
        self,
        agent_name: str,
        clock: Callable[[], float] = time.monotonic,
        unit_bytes: int | None = None,
    ) -> None:
        self._agent_name = agent_name
        self._clock = clock
        api = load_nixl()
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        try:
            self._agent: Any = api.nixl_agent(agent_name, config)
        except Exception as error:  # nixl's own errors share no exported base class
            raise ConfigurationError(f"NIXL could not start UCX: {error}") from error
        self._registration: Any = None
        self._region: RegionMetadata | None = None
        self._peers: dict[str, RegionMetadata] = {}
        self._retired: dict[str, RegionMetadata] = {}  # disconnected, with reads in flight
        self._ucx = UcxEndpoints(agent_name)
        self._endpoints: dict[str, frozenset[int]] = {}  # UCX's, of each peer
        self._unit_bytes = unit_bytes
        self._our_units: UnitList | None = None
        self._units: dict[str, UnitList] = {}  # of peers, the retired ones included
        self._reads: dict[ReadHandle, _Read] = {}
        self._next_handle = 0
        self._bytes_read = 0

    def register(self, address: int, num_bytes: int, device: str) -> bytes:
        if self._region is not None:
            raise TransferError("a region is registered already")
        kind, device_id = memory_kind(device)
        agent = self._open_agent()
        try:
            registration = agent.get_reg_descs([(address, num_bytes, device_id, "")], kind)
            agent.register_memory(registration, backends=["UCX"])
            agent_metadata = agent.get_agent_metadata()
        except Exception as error:
            raise TransferError(
                f"cannot register {num_bytes} bytes on {device}: {error}"
            ) from error
        self._registration = registration
        self._region = RegionMetadata(self._agent_name, agent_metadata, address, num_bytes, device)
        self._our_units = list_units(agent, OURSELVES, self._region, self._unit_bytes)
        return self._region.encode()

    def connect(self, peer: str, metadata: bytes) -> None:
        region = RegionMetadata.decode(metadata)
        if peer in self._peers or peer in self._retired:
            raise TransferError(f"{peer} is connected already, or still has reads in flight")
        known = {other.agent_name for other in (*self._peers.values(), *self._retired.values())}
        if region.agent_name in known | {self._agent_name}:
            raise TransferError(f"agent {region.agent_name} is known under another name")
        before, agent = self._ucx.addresses(), self._open_agent()
        try:
            loaded = agent.add_remote_agent(region.agent_metadata)
        except Exception as error:
            raise TransferError(f"cannot connect to {peer}: {error}") from error
        if _text(loaded) != region.agent_name:
            self._remove_agent(_text(loaded))
            raise TransferError(f"{peer} says it is {region.agent_name}, NIXL {_text(loaded)}")
        self._peers[peer] = region
        self._endpoints[peer] = self._ucx.addresses() - before
        if (units := list_units(agent, region.agent_name, region, self._unit_bytes)) is not None:
            self._units[peer] = units

    def disconnect(self, peer: str) -> None:
        region = self._peers.pop(peer, None)
        self._endpoints.pop(peer, None)
        if region is not None:
            self._retired[peer] = region
            self._forget_if_idle(peer)

    def medium(self, peer: str) -> Medium:
        if self._region is None or peer not in self._peers:
            return UNKNOWN_MEDIUM
        lanes = [lane for address in self._endpoints[peer] for lane in self._ucx.lanes(address)]
        return medium_of(lanes, self._region.device)

    def post_read(self, peer: str, remote: list[ByteRange], local: list[ByteRange]) -> ReadHandle:
        source = self._peers.get(peer)
        if self._region is None or source is None:
            raise TransferError(f"{peer} is not connected, or no region is registered")
        if len(self._reads) >= MAX_READS or len(remote) > MAX_RANGES:
            raise TransferError(f"more than {MAX_READS} reads or {MAX_RANGES} ranges")
        check_pairs(remote, local)
        check_ranges(remote, source.num_bytes, "remote")
        check_ranges(local, self._region.num_bytes, "local")
        agent = self._open_agent()
        try:
            request = self._of_units(peer, remote, local) or agent.initialize_xfer(
                "READ",
                describe(agent, self._region, local),
                describe(agent, source, remote),
                source.agent_name,
                b"",
                ["UCX"],
            )
        except Exception as error:  # nothing was posted
            raise TransferError(f"cannot read from {peer}: {error}") from error
        return self._post(_Read(peer, request, sum(part.length for part in local)))

    def _of_units(self, peer: str, remote: list[ByteRange], local: list[ByteRange]) -> Any:
        """A request for whole blocks by their indices; None if that is not what is read."""
        ours, theirs = self._our_units, self._units.get(peer)
        if ours is None or theirs is None:
            return None
        here, there = ours.indices(local), theirs.indices(remote)
        if here is None or there is None:
            return None
        return self._open_agent().make_prepped_xfer(
            "READ", ours.handle, here, theirs.handle, there, b"", ["UCX"]
        )

    def _post(self, read: _Read) -> ReadHandle:
        """From here on bytes may arrive: even a refused post ends by poll, not by raising."""
        handle = ReadHandle(self._next_handle)
        self._next_handle += 1
        self._reads[handle] = read
        try:
            refused = self._open_agent().transfer(read.request) == "ERR"
        except Exception:
            refused = True
        if refused:
            read.failed_at = self._clock()
        return handle

    def poll(self, handle: ReadHandle) -> ReadState:
        read = self._reads.get(handle)
        if read is None:
            raise TransferError(f"read {handle} is unknown or spent")
        state = self._state(read)
        if state is ReadState.IN_FLIGHT:
            return state
        del self._reads[handle]
        read.request.release()
        if read.peer in self._retired:
            self._forget_if_idle(read.peer)
            return ReadState.FAILED
        if state is ReadState.DONE:
            self._bytes_read += read.num_bytes
        return state

    def _state(self, read: _Read) -> ReadState:
        agent = self._open_agent()
        if read.failed_at is None:
            try:
                state = agent.check_xfer_state(read.request)
            except Exception:  # how NIXL reports a dead peer; the read's end is all we need
                state = "ERR"
            if state == "DONE":
                return ReadState.DONE
            if state == "PROC":
                return ReadState.IN_FLIGHT
            read.failed_at = self._clock()
        self.progress()
        settled = self._clock() - read.failed_at >= SETTLE_SECONDS
        return ReadState.FAILED if settled else ReadState.IN_FLIGHT

    def progress(self) -> None:
        self._open_agent().get_new_notifs()

    def close(self) -> None:
        """Free NIXL's resources. After this nothing is written into our memory any more."""
        if self._agent is None:
            return
        in_flight = bool(self._reads)
        for read in self._reads.values():
            read.request.release()
        self._reads.clear()
        for region in (*self._peers.values(), *self._retired.values()):
            self._remove_agent(region.agent_name)
        self._units.clear()
        self._our_units = None
        self._peers.clear()
        self._retired.clear()
        if self._registration is not None and not in_flight:
            # UCX may still refer to the registration of a read in flight; then it goes with
            # the agent.
            self._agent.deregister_memory(self._registration)
        self._registration = self._region = self._agent = None

    @property
    def bytes_read(self) -> int:
        return self._bytes_read

    def _open_agent(self) -> Any:
        if self._agent is None:
            raise TransferError("the transport is closed")
        return self._agent

    def _forget_if_idle(self, peer: str) -> None:
        if not any(read.peer == peer for read in self._reads.values()):
            self._units.pop(peer, None)
            self._remove_agent(self._retired.pop(peer).agent_name)

    def _remove_agent(self, agent_name: str) -> None:
        try:
            self._agent.remove_remote_agent(agent_name)
        except Exception as error:  # NIXL forgets a dead peer by itself
            logging.getLogger(__name__).debug("forgetting %s: %s", agent_name, error)


def check_nixl_installed() -> None:
    """Raises ConfigurationError. Imports nothing: that would start UCX in this process."""
    if not any(importlib.util.find_spec(package) for package in PACKAGES):
        raise ConfigurationError(
            f"transfer.transport is nixl, but NIXL is not installed; {HOW_TO_INSTALL}",
            param="transfer.transport",
        )


def load_nixl() -> Any:
    """Import NIXL under either of its names, and undo what that does to logging."""
    raise_exceptions = logging.raiseExceptions
    failures = []
    for package in PACKAGES:
        try:
            api = importlib.import_module(f"{package}._api")
        except ImportError as error:
            failures.append(str(error))
            continue
        finally:
            logging.raiseExceptions = raise_exceptions
        logging.getLogger("nixl").setLevel(logging.WARNING)
        return api
    raise ConfigurationError(
        f"transfer.transport is nixl, but NIXL cannot be imported ({'; '.join(failures)}); "
        f"{HOW_TO_INSTALL}",
        param="transfer.transport",
    )


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
