"""Asks UCX itself which transports an endpoint uses: NIXL, which hides UCX, does not tell.

UCX lists its objects in a small tree of names in memory (`ucs_vfs_*`): there are the addresses of
the endpoints of each worker, and `ucp_ep_print_info` says what each lane of an endpoint is for.
Whatever is not as expected (no UCX in this process, another major version, another wording) makes
the answer empty, never an error: it is information, nothing depends on it to move bytes. All of
it must be called by the thread that drives the transport.
"""

import ctypes
import logging
import re
from pathlib import Path

from segue.kvtransfer.medium import Lane

logger = logging.getLogger(__name__)

KNOWN_MAJOR_VERSION = 1
MAX_TEXT_BYTES = 2**20
_LIST_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)
_LIBS = ("libucs", "libucp")
_LANE = re.compile(
    r"lane\[\d+\]:\s+\d+:(?P<transport>\w+)/(?P<device>[^\s]+?)(\.\d+)? md\[\d+\]"
    r"\s+-> \S+ seg \d+ (?P<uses>[^\n]*)"
)


class UcxEndpoints:
    """The endpoints of the UCX context called `context`, as NIXL names it after its agent."""

    def __init__(self, context: str) -> None:
        """The context must exist already."""
        self._root = f"/ucp/context/{context}"
        self._libc = ctypes.CDLL(None)
        self._ucs: ctypes.CDLL | None = None
        self._ucp: ctypes.CDLL | None = None
        for ucs, ucp in _loaded_libraries():  # of several UCX, the one that NIXL uses
            if self._declare(ucs, ucp):
                self._ucs, self._ucp = ucs, ucp
                if context in self._contexts():
                    return
        self._ucs = self._ucp = None
        logger.info("no UCX tells of %s: what carries its reads will be unknown", context)

    def addresses(self) -> frozenset[int]:
        """All endpoints that exist now."""
        root, found = self._root, set[int]()
        self._contexts()
        self._names(root)
        for worker in self._names(f"{root}/worker"):
            self._names(f"{root}/worker/{worker}")
            for name in self._names(f"{root}/worker/{worker}/ep"):
                if re.fullmatch(r"0x[0-9a-f]+", name):
                    found.add(int(name, 16))
        return frozenset(found)

    def _contexts(self) -> list[str]:
        self._names("/ucp")  # UCX fills in a folder when it is listed
        return self._names("/ucp/context")

    def lanes(self, address: int) -> tuple[Lane, ...]:
        """The lanes of an endpoint; none if there is no such endpoint any more."""
        if self._ucp is None or address not in self.addresses():
            return ()
        text = self._description(self._ucp, address)
        lanes = parse_lanes(text)
        if not lanes:
            logger.info("UCX describes an endpoint in an unknown way: %.200r", text)
        return lanes

    def _declare(self, ucs: ctypes.CDLL, ucp: ctypes.CDLL) -> bool:
        """Tell ctypes the types of what is called; False if something is not there."""
        try:
            ucs.ucs_vfs_path_list_dir.argtypes = [ctypes.c_char_p, _LIST_CALLBACK, ctypes.c_void_p]
            ucs.ucs_vfs_path_list_dir.restype = ctypes.c_int8
            ucp.ucp_ep_print_info.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            ucp.ucp_ep_print_info.restype = None
            self._libc.open_memstream.restype = ctypes.c_void_p
            self._libc.fclose.argtypes = [ctypes.c_void_p]
            self._libc.free.argtypes = [ctypes.c_void_p]
            version = [ctypes.c_uint() for _ in range(3)]
            ucp.ucp_get_version(*map(ctypes.byref, version))
        except AttributeError as error:
            logger.info("this UCX does not tell of its endpoints: %s", error)
            return False
        return version[0].value == KNOWN_MAJOR_VERSION

    def _names(self, folder: str) -> list[str]:
        names: list[str] = []
        if self._ucs is not None:
            callback = _LIST_CALLBACK(lambda name, _: names.append(name.decode(errors="replace")))
            self._ucs.ucs_vfs_path_list_dir(folder.encode(), callback, None)
        return names

    def _description(self, ucp: ctypes.CDLL, address: int) -> str:
        text, num_bytes = ctypes.c_void_p(), ctypes.c_size_t()
        stream = self._libc.open_memstream(ctypes.byref(text), ctypes.byref(num_bytes))
        if not stream:
            return ""
        ucp.ucp_ep_print_info(address, stream)
        self._libc.fclose(stream)
        try:
            shown = min(num_bytes.value, MAX_TEXT_BYTES)
            return ctypes.string_at(text.value or 0, shown).decode(errors="replace")
        finally:
            self._libc.free(text)


def parse_lanes(text: str) -> tuple[Lane, ...]:
    """The lanes in what `ucp_ep_print_info` prints."""
    return tuple(
        Lane(found["transport"], found["device"], tuple(found["uses"].split()))
        for found in _LANE.finditer(text)
    )


def _loaded_libraries() -> list[tuple[ctypes.CDLL, ctypes.CDLL]]:
    """Each libucs that this process has loaded already, with the libucp of the same folder."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    paths = sorted({line.split(maxsplit=5)[-1] for line in lines if "/libuc" in line})
    found = []
    for folder in dict.fromkeys(Path(path).parent for path in paths):
        names = [Path(path) for path in paths if Path(path).parent == folder]
        pair = [next((n for n in names if re.match(rf"{lib}[-.]", n.name)), None) for lib in _LIBS]
        try:
            ucs, ucp = (ctypes.CDLL(str(path)) for path in pair if path is not None)
        except (OSError, ValueError):  # not both of them, or not to be loaded
            continue
        found.append((ucs, ucp))
    return found
