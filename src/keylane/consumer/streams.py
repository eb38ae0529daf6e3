"""`Stream`: a consumer's results as an iterator and as an async iterator.

The idea: the consumer runs on a thread of its own while its results are read here. The reader's pace is the
consumer's: while too many results wait to be read, no new record starts.
"""

from __future__ import annotations

import asyncio
import threading
from queue import Empty
from typing import TYPE_CHECKING, Self

from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from keylane.consumer.outputs import AnyShown
    from keylane.consumer.results import ResultQueue
    from keylane.records import Result


class Stream:
    """Results of a running consumer; made by `ParallelConsumer.stream`, and of lanes by `LaneQuery.stream`.

    with consumer.stream() as results: for result in results: …
    async with consumer.stream() as results: async for result in results: …

    Leaving the block stops the consumer, which drains and commits. What ended the run by itself is raised where
    reading ends, or at the end of the block. Thread safety: one reader.
    """

    def __init__(self, queue: ResultQueue[AnyShown], run: Callable[[], None], stop: Callable[[], None]) -> None:
        self._queue = queue
        self._run = run
        self._stop = stop
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="keylane-stream", daemon=True)
        self._more = asyncio.Event()

    def _serve(self) -> None:
        try:
            self._run()
        except BaseException as error:  # handed to the reader
            self._failure = error
        finally:
            self._queue.close(0)  # also when there was never a loop to close it

    # --- sync ---

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(failed=error is not None)
        self._thread.join()
        if error is None:
            self._raise()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Result:
        self._check_begun()
        result = self._queue.read(wait=True)
        if result is None:
            self._thread.join()
            self._raise()
            raise StopIteration
        return result

    # --- async ---

    async def __aenter__(self) -> Self:
        running = asyncio.get_running_loop()
        self._queue.wake_by(lambda: _call_soon(running, self._more.set))
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(failed=error is not None)
        await asyncio.to_thread(self._thread.join)
        if error is None:
            self._raise()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        self._check_begun()
        while True:
            self._more.clear()
            try:
                result = self._queue.read(wait=False)
            except Empty:
                await self._more.wait()
                continue
            if result is None:
                await asyncio.to_thread(self._thread.join)
                self._raise()
                raise StopAsyncIteration
            return result

    # --- both ---

    def _leave(self, *, failed: bool) -> None:
        if not failed:
            self._queue.settle()
        self._stop()
        self._queue.leave()

    def _check_begun(self) -> None:
        if self._thread.ident is None:
            raise UsageError("a stream is read in its `with` block, which runs its consumer")

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """From another thread; a loop that has ended needs no call any more."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise
