"""The gateway's end of one text process: starts it, gives it jobs one at a time, ends it."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process

import orjson

from segue.cluster.errors import InternalError, Unavailable
from segue.router.preparation import Refusal
from segue.router.text_model import TextSource
from segue.router.text_process import LENGTH_BYTES, SOURCE, Ending, Order

START_SECONDS = 60.0
_PIECE_BYTES = 256 * 2**10  # that are handed to the event loop at once
_MODULE = "segue.router.text_process"


class TextLink:
    """`broken`: it was cancelled or has failed within a job, so nothing more may be asked."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.broken = False

    @classmethod
    async def start(cls, source: TextSource) -> "TextLink":
        """Return when it has loaded the model's tokenizer. Raises Unavailable."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _MODULE), stdin=PIPE, stdout=PIPE
            )
        except OSError as error:
            raise Unavailable(f"no process for text: {error}") from error
        link = cls(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                await link._write(SOURCE.dump_json(source))
                await link._read()
        except TimeoutError:
            await link.end()
            raise Unavailable(f"a text process is not ready after {START_SECONDS} s") from None
        except BaseException:
            await link.end()
            raise
        return link

    async def run(self, job: str, data: bytes, seconds: float) -> bytes:
        """Raises the job's error, TimeoutError, or Unavailable if the process has died."""
        self.broken = True
        async with asyncio.timeout(seconds):
            await self._write(orjson.dumps(Order(job, seconds)), data)
            ending = Ending((await self._read()).decode())
            result = await self._read()
        self.broken = False
        if ending is Ending.REFUSED:
            raise Refusal(**orjson.loads(result)).error()
        if ending is Ending.FAILED:
            raise InternalError(f"job {job} failed: {result.decode()}")
        return result

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        # Until its output is read to the end the process does not count as ended.
        await self._process.communicate()

    async def _write(self, *parts: bytes) -> None:
        stream = self._process.stdin
        assert stream is not None
        try:
            for part in parts:
                stream.write(len(part).to_bytes(LENGTH_BYTES, "little"))
                for begin in range(0, len(part), _PIECE_BYTES):
                    stream.write(part[begin : begin + _PIECE_BYTES])
                    await stream.drain()
        except ConnectionError as error:
            raise Unavailable("a text process has died") from error

    async def _read(self) -> bytes:
        stream = self._process.stdout
        assert stream is not None
        try:
            head = await stream.readexactly(LENGTH_BYTES)
            return await stream.readexactly(int.from_bytes(head, "little"))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Unavailable("a text process has died") from error
