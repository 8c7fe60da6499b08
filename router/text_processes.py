"""The text processes of a gateway: as many jobs at once as there are, each with a deadline."""

import asyncio
import logging

from segue.cluster.errors import InvalidRequest, SegueError, Unavailable
from segue.router.preparation import Prepared, unpack
from segue.router.text_link import START_SECONDS, TextLink
from segue.router.text_model import TextSource

log = logging.getLogger(__name__)

LARGE_BYTES = 64 * 2**10
WAIT_SECONDS = 60.0  # for a free process
JOB_SECONDS = 10.0  # a template has half of them
SECONDS_PER_BYTE = 4 / 2**20  # a slow machine tokenizes twice as fast
ABANDONED_SECONDS = 1.0  # for a job whose client has left: less than another process costs
MAX_RESTART_SECONDS = 30.0


class TextProcesses:
    """Large bodies leave one process to the small ones, if there are two.

    Jobs wait in order for a free process. One that runs past its deadline, or for long after its
    client has left, is killed with its process, and another one is started.
    """

    def __init__(self, source: TextSource, num_processes: int) -> None:
        self._source = source
        self._num_processes = num_processes
        self._idle = asyncio.LifoQueue[TextLink]()
        self._free_for_large = asyncio.Semaphore(max(1, num_processes - 1))
        self._links: set[TextLink] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False

    async def start(self) -> None:
        """Return when all of them are ready, so that no client waits for that, or soon after."""
        starting = [asyncio.create_task(self._add_process()) for _ in range(self._num_processes)]
        for task in starting:
            self._keep(task)
        await asyncio.wait(starting, timeout=START_SECONDS)

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.end() for link in self._links))

    async def prepare(self, job: str, data: bytes) -> Prepared:
        return unpack(await self.run(job, data))

    async def run(self, job: str, data: bytes) -> bytes:
        """Raises what the job raises, InvalidRequest if it takes too long, Unavailable if none of
        the processes is free in time, or if the one dies."""
        large = self._free_for_large if len(data) > LARGE_BYTES else None
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                link = await self._take(large)
        except TimeoutError:
            raise Unavailable(f"no text process was free for {WAIT_SECONDS:.0f} s") from None
        task = asyncio.create_task(self._run(link, job, data, large))
        self._keep(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(ABANDONED_SECONDS, task.cancel)
            raise

    async def _take(self, large: asyncio.Semaphore | None) -> TextLink:
        if large is None:
            return await self._idle.get()
        await large.acquire()
        try:
            return await self._idle.get()
        except BaseException:
            large.release()
            raise

    async def _run(
        self, link: TextLink, job: str, data: bytes, large: asyncio.Semaphore | None
    ) -> bytes:
        seconds = JOB_SECONDS + len(data) * SECONDS_PER_BYTE
        try:
            return await link.run(job, data, seconds)
        except TimeoutError:
            message = f"the request takes more than {seconds:.0f} s to prepare"
            raise InvalidRequest(message) from None
        finally:
            if large is not None:
                large.release()
            if link.broken and not self._closed:
                self._keep(asyncio.create_task(self._replace(link)))
            elif not link.broken:
                self._idle.put_nowait(link)

    async def _replace(self, link: TextLink) -> None:
        await link.end()
        self._links.discard(link)
        await self._add_process()

    async def _add_process(self) -> None:
        pause = 1.0
        while True:
            try:
                link = await TextLink.start(self._source)
                self._links.add(link)
                self._idle.put_nowait(link)
                return
            except SegueError as error:
                log.error("%s; the next try is in %.0f s", error.message, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_RESTART_SECONDS)

    def _keep(self, task: "asyncio.Task[object]") -> None:
        """Until it ends; its error may have nobody else to read it, if its caller has left."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, SegueError):
            log.error("a text process can not be kept", exc_info=error)
