"""A process beside the gateway's that does the work which grows with a client's input.

It reads jobs from its standard input and writes their results to its standard output until the
former ends. Parsing, templates and tokenizers keep the GIL: in the gateway's own threads they
would stop every stream, and could not be killed.

    gateway -> here  source, then for each job: its Order, the body
    here -> gateway  b"" when ready, then for each job: how it ended and its result, or a Refusal
"""

import os
import signal
import sys
import traceback
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO

import orjson
from pydantic import TypeAdapter

from segue.cluster.errors import InvalidRequest, SegueError
from segue.router.preparation import JOBS, Refusal
from segue.router.text_model import TextModel, TextSource, load_text_model
from segue.router.time_limit import bound_memory, die_after

LENGTH_BYTES = 8  # before everything that is written, little-endian
MAX_MEMORY_BYTES = 2 * 2**30  # 8 MiB of "[]," are 200 MB when parsed

SOURCE = TypeAdapter(TextSource)


@dataclass(frozen=True, slots=True)
class Order:
    job: str
    cpu_seconds: float  # after which the process is killed


class Ending(StrEnum):
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"  # unexpectedly; the result is a traceback


def main() -> None:
    # It ends when its gateway does, which may have answers to finish after a signal to both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints must not get between the results
    source = _read(incoming)
    if source is None:
        return
    model = load_text_model(SOURCE.validate_json(source))
    bound_memory(MAX_MEMORY_BYTES)
    _write(outgoing, b"")
    while (order := _read(incoming)) is not None and (data := _read(incoming)) is not None:
        ending, result = _do(model, Order(**orjson.loads(order)), data)
        _write(outgoing, ending.encode(), result)


def _do(model: TextModel, order: Order, data: bytes) -> tuple[Ending, bytes]:
    try:
        with die_after(order.cpu_seconds):
            return Ending.DONE, JOBS[order.job](model, data)
    except SegueError as error:
        return Ending.REFUSED, orjson.dumps(Refusal.of(error))
    except MemoryError:
        too_much = InvalidRequest("the request takes too much memory to prepare")
        return Ending.REFUSED, orjson.dumps(Refusal.of(too_much))
    except Exception:
        return Ending.FAILED, traceback.format_exc().encode(errors="replace")


def _read(stream: BinaryIO) -> bytes | None:
    """The next thing that was written, None at the end."""
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    data = stream.read(length)
    return data if len(data) == length else None


def _write(stream: BinaryIO, *parts: bytes) -> None:
    for part in parts:
        stream.write(len(part).to_bytes(LENGTH_BYTES, "little"))
        stream.write(part)
    stream.flush()


if __name__ == "__main__":
    main()
