"""What reading KV blocks from another process costs, beside NIXL alone for the same bytes.

    python -m segue.bench.transfer_bench [--rounds N]

Blocks are of the bundled model's size and scattered on both sides. `raw` describes them anew for
each read and spins until it is done; `prepared` names blocks by index in lists that NIXL was given
once; `read` is what a decode worker does (plan, transfer thread, its pauses), `checked` the same
with checksums. The last line is one JSON object.
"""

import argparse
import base64
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import orjson
import torch

from segue.cluster.errors import TransferError
from segue.cluster.identity import new_incarnation
from segue.kvtransfer.checksum import host_checksums, memory_view
from segue.kvtransfer.layout import KVLayout
from segue.kvtransfer.nixl_metadata import RegionMetadata
from segue.kvtransfer.nixl_transport import NixlTransport, load_nixl
from segue.kvtransfer.probe_area import ProbeArea, area_bytes, pattern
from segue.kvtransfer.receiver import Receiver

LAYOUT = KVLayout(96, 30, 3, 16, 64, "float32", 4)
NUM_BLOCKS = (1, 8, 64)
PROBE_BYTES = 2**20
ROUNDS = 30
TURNS = 3
READ_SECONDS = 60.0
Blocks = list[tuple[int, int]]  # (the source's, ours)


class Memory:
    """A worker's region: random blocks and, behind them, what a preflight needs."""

    def __init__(self, incarnation: str, seed: int) -> None:
        num_bytes = LAYOUT.num_bytes + area_bytes(PROBE_BYTES)
        self.array = np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8)
        spare = torch.from_numpy(self.array[LAYOUT.num_bytes :])
        self.area = ProbeArea(spare, LAYOUT.num_bytes, incarnation)

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def blocks(self) -> memoryview:
        return memory_view(self.address, LAYOUT.num_bytes)


def serve_blocks(incarnation: str, seed: int) -> None:
    """The source's process: lets others read until its standard input ends."""
    memory = Memory(incarnation, seed)
    transport = NixlTransport(incarnation)
    metadata = transport.register(memory.address, memory.array.nbytes, "cpu")
    print(base64.b64encode(metadata).decode(), flush=True)
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        transport.progress()
    transport.close()


@contextmanager
def source_process(incarnation: str, seed: int) -> Iterator[bytes]:
    """Yields the metadata of a source."""
    command = [sys.executable, "-m", "segue.bench.transfer_bench", "--source", incarnation]
    process = subprocess.Popen(
        [*command, "--seed", str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield base64.b64decode(process.stdout.readline())
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


class RawReader:
    """NIXL alone, by its own API."""

    def __init__(self, metadata: bytes) -> None:
        api, name = load_nixl(), new_incarnation()
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent: Any = api.nixl_agent(name, config)
        self._memory = Memory(name, 0)
        place = [(self._memory.address, self._memory.array.nbytes, 0, "")]
        self._agent.register_memory(self._agent.get_reg_descs(place, "DRAM"), backends=["UCX"])
        self._source = RegionMetadata.decode(metadata)
        self._agent.add_remote_agent(self._source.agent_metadata)
        ours, theirs = ([self._places(base, range(LAYOUT.num_blocks))] for base in self._bases)
        self._ours = self._agent.prep_xfer_dlist("NIXL_INIT_AGENT", *ours, "DRAM", ["UCX"])
        self._theirs = self._agent.prep_xfer_dlist(
            self._source.agent_name, *theirs, "DRAM", ["UCX"]
        )

    @property
    def _bases(self) -> tuple[int, int]:
        return self._memory.address, self._source.address

    def _places(self, base: int, blocks: Any) -> list[tuple[int, int, int]]:
        size = LAYOUT.block_bytes
        return [(base + block * size, size, 0) for block in blocks]

    def described(self, blocks: Blocks) -> Any:
        ours, theirs = self._bases
        agent = self._agent
        return agent.initialize_xfer(
            "READ",
            agent.get_xfer_descs(self._places(ours, [here for _, here in blocks]), "DRAM"),
            agent.get_xfer_descs(self._places(theirs, [there for there, _ in blocks]), "DRAM"),
            *(self._source.agent_name, b"", ["UCX"]),
        )

    def prepared(self, blocks: Blocks) -> Any:
        here, there = [ours for _, ours in blocks], [theirs for theirs, _ in blocks]
        return self._agent.make_prepped_xfer(
            "READ", self._ours, here, self._theirs, there, b"", ["UCX"]
        )

    def read(self, request: Any) -> None:
        agent = self._agent
        state = agent.transfer(request)
        while state == "PROC":
            state = agent.check_xfer_state(request)
        if state != "DONE":
            raise TransferError("the read failed")
        request.release()


class SegueReader:
    """What a decode worker reads with."""

    def __init__(self, source: str, metadata: bytes) -> None:
        self._source = source
        self._memory = Memory(own := new_incarnation(), 1)
        transport = NixlTransport(own, unit_bytes=LAYOUT.block_bytes)
        transport.register(self._memory.address, self._memory.array.nbytes, "cpu")
        self._receiver = Receiver(
            transport,
            LAYOUT,
            host_checksums(self._memory.blocks, LAYOUT),
            area=self._memory.area,
        )
        self._receiver.start()
        self._receiver.connect(source, metadata, LAYOUT.num_blocks).result(READ_SECONDS)

    def preflight(self) -> dict[str, object]:
        began = time.perf_counter()
        expected = pattern(self._source, PROBE_BYTES)
        result = self._receiver.probe(self._source, expected, READ_SECONDS).result.result()
        return {
            "transport": result.medium.kind.value,
            "detail": result.medium.detail,
            "measured": result.medium.measured,
            "gb_per_s": round(result.gigabytes_per_second, 3),
            "whole_ms": round((time.perf_counter() - began) * 1e3, 2),
        }

    def read(self, blocks: Blocks, sums: list[int]) -> None:
        """Without `sums`, unchecked."""
        there, here = zip(*blocks, strict=True)
        checksums = tuple(sums[block] for block in there) if sums else ()
        read = self._receiver.read(self._source, there, here, checksums, READ_SECONDS)
        read.verified.result(READ_SECONDS)

    def close(self) -> None:
        self._receiver.stop()


@dataclass(slots=True)
class Timer:
    """Times the ways in turns of a few reads, so that what else the machine does strikes all."""

    rounds: int
    random: Random

    def _blocks(self, count: int) -> Blocks:
        theirs, ours = (self.random.sample(range(LAYOUT.num_blocks), count) for _ in range(2))
        return list(zip(theirs, ours, strict=True))

    def medians(self, count: int, ways: dict[str, Callable[[Blocks], None]]) -> dict[str, float]:
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(TURNS):
            for name, act in ways.items():
                for _ in range(-(-self.rounds // TURNS)):
                    blocks = self._blocks(count)
                    began = time.perf_counter()
                    act(blocks)
                    seconds[name].append(time.perf_counter() - began)
        return {name: statistics.median(found) for name, found in seconds.items()}


def measure(rounds: int, seed: int = 7) -> dict[str, object]:
    source = new_incarnation()
    with source_process(source, seed) as metadata:
        raw, segue = RawReader(metadata), SegueReader(source, metadata)
        try:
            pair = segue.preflight()
            print(f"{pair['transport']} ({pair['detail']}), {LAYOUT.block_bytes} bytes a block")
            same = Memory(source, seed)
            sums = list(host_checksums(same.blocks, LAYOUT)(range(LAYOUT.num_blocks)))
            ways: dict[str, Callable[[Blocks], None]] = {
                "raw": lambda blocks: raw.read(raw.described(blocks)),
                "prepared": lambda blocks: raw.read(raw.prepared(blocks)),
                "read": lambda blocks: segue.read(blocks, []),
                "checked": lambda blocks: segue.read(blocks, sums),
                "describe": lambda blocks: raw.described(blocks).release(),
                "name": lambda blocks: raw.prepared(blocks).release(),
            }
            timer = Timer(rounds, Random(seed))
            timer.medians(NUM_BLOCKS[-1], ways)  # every page has been touched after this
            figures = {str(count): shown(count, timer.medians(count, ways)) for count in NUM_BLOCKS}
        finally:
            segue.close()
    return {"pair": pair, "block_bytes": LAYOUT.block_bytes, "blocks": figures}


def shown(count: int, medians: dict[str, float]) -> dict[str, float]:
    """Print the medians of reading `count` blocks, and give them names and units."""
    figures: dict[str, float] = {}
    for name, seconds in medians.items():
        figures[f"{name}_us"] = round(seconds * 1e6, 1)
        rate = count * LAYOUT.block_bytes / seconds / 1e9
        if name in ("describe", "name"):
            print(f"{count:4d} blocks  {name:9s} {seconds * 1e6:10.1f} us")
            continue
        figures[f"{name}_gb_per_s"] = round(rate, 3)
        print(f"{count:4d} blocks  {name:9s} {seconds * 1e6:10.1f} us {rate:8.2f} GB/s")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="reads of each kind")
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=7, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.source:
        serve_blocks(options.source, options.seed)
        return
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    print(orjson.dumps(measure(options.rounds)).decode())


if __name__ == "__main__":
    main()
