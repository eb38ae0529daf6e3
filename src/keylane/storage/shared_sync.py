"""Group commit: everything that waits to be durable in one file shares one write and one fdatasync.

`append` queues bytes and returns at once with a future. A round takes all that is queued, writes it and syncs it in the
executor, and then resolves that one future; what is appended meanwhile goes into the next round. So a thousand waiting
commits cost one sync, and the event loop does not wait for the disk. The one exception, by request: while syncs are
short, one that few appends wait for is done on the loop, since handing it to a thread and back takes as long.

After a failed write or sync the file's content is unknown, so it is failed for good: every waiter and every later
append gets the same `StorageError`. Nothing is tried again (a second fdatasync may report success for lost pages). The
one exception is a write for which there was no room: what it left is cut off, durably, all that waits is told a
`NoRoomError`, and the next append is tried anew.

Thread safety: all methods belong to the event loop's thread; only `_work` runs in the executor, one round at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from keylane.storage.filesystem import DiskFullError, NoRoomError, StorageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

Data = bytes | bytearray | memoryview
Step = Callable[[], None]

INLINE_LIMIT_S = 0.002
"""A sync on the loop that takes longer than this is the last there, until one in the executor was shorter."""
SHARED_INLINE_LIMIT_S = 0.0004
"""The same for a sync that several appends wait for: what else comes meanwhile would have been worth more."""
INLINE_APPENDS = 32
"""More appends than this always go to the executor: their number makes up for the way there."""
JOIN_LIMIT_BYTES = 256 * 1024
"""Pieces are joined into writes of up to this size; a larger piece is written as it is, without a copy."""


class SyncTarget(Protocol):
    """What a round needs of a file."""

    @property
    def path(self) -> str: ...
    def write(self, data: Data) -> None: ...
    def sync(self) -> None: ...
    def cut(self) -> None:
        """Take back what was written since the last sync; durable on return. Raises `OSError`."""
        ...


class Round(asyncio.Future[None]):
    """Resolved when the sync that covers an append is done. Shared by many waiters, so none of them may cancel it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._calls: list[Callable[[Round], None]] = []

    def when_over(self, call: Callable[[Round], None], *, first: bool = False) -> None:
        """Call this in the same turn of the loop in which the round is over: in order, and before any waiter goes on. A
        done callback would take a turn more.

        `first` is for answers, which rest on nothing that others do then: clients go on with them meanwhile.
        """
        if self.done():
            self.get_loop().call_soon(call, self)
        elif first:
            self._calls.insert(0, call)
        else:
            self._calls.append(call)

    def tell(self) -> None:
        """It is over."""
        for call in self._calls:
            try:
                call(self)
            except Exception as error:  # one's failure is not the others', as with done callbacks
                message = f"a call at the end of a sync failed: {call}"
                self.get_loop().call_exception_handler({"message": message, "exception": error, "future": self})

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002
        return False


class SharedSync:
    """Appends to one file and tells when they are durable.

    `on_synced(mark)` is called in the loop's thread when a round is durable, before its waiters wake, with the mark of
    the last append that it covers. `on_failed(error)` is called when one is not, before its waiters wake, and those of
    all that was appended behind it: after a `NoRoomError` the file is as it was before the round.
    """

    def __init__(
        self,
        file: SyncTarget,
        executor: Executor,
        *,
        on_synced: Callable[[Any], None] | None = None,
        on_failed: Callable[[StorageError], None] | None = None,
        may_sync_inline: bool = False,
    ) -> None:
        self._file = file
        self._on_failed = on_failed
        self._may_sync_inline = may_sync_inline
        self._last_s = 0.0
        """How long the last round took."""
        self._executor = executor
        self._on_synced = on_synced
        self._queue: list[Data | Step] = []
        self._mark: Any = None
        self._next: Round | None = None
        self._current: Round | None = None
        self._failure: StorageError | None = None

    @property
    def failure(self) -> StorageError | None:
        """Why this file takes no more appends; None while it does."""
        return self._failure

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be durable."""
        return self._current is None and self._next is None

    @property
    def pending(self) -> Round | None:
        """Resolves when all that was appended so far is durable; None when it is."""
        return self._next or self._current

    def join(self) -> Round:
        """The round of what is appended next, in the same turn of the loop. Raises `StorageError` once the file has
        failed."""
        if self._failure is not None:
            raise self._failure
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = Round(loop)
            if self._current is None:
                loop.call_soon(self._start)  # not now: what else this turn of the loop appends shares the sync
        return self._next

    def append(self, data: Data, mark: Any = None) -> Round:
        """Queue `data`; the future resolves when it is durable. Raises `StorageError` once the file has failed.

        `data` must not change until then.
        """
        round_ = self.join()
        self._queue.append(data)
        self._mark = mark
        return round_

    def append_all(self, pieces: Sequence[Data], mark: Any = None) -> Round:
        """The same for data in several pieces."""
        round_ = self.join()
        self._queue += pieces
        self._mark = mark
        return round_

    def run(self, step: Step, mark: Any = None) -> Round:
        """Queue a blocking `step` for the executor, in order with the appends (to change files at a roll, say)."""
        round_ = self.join()
        self._queue.append(step)
        self._mark = mark
        return round_

    async def flush(self) -> None:
        """Return when all that was appended so far is durable. Raises `StorageError`."""
        if self.pending is not None:
            await self.pending
        elif self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Wait until no round is under way, whatever its outcome. The file itself stays open."""
        while not self.is_idle:
            with contextlib.suppress(StorageError):
                await self.flush()

    def _start(self) -> None:
        if self._next is None or self._current is not None:
            return
        self._current, self._next = self._next, None
        queue, self._queue = self._queue, []
        mark = self._mark
        if self._is_for_the_loop(queue):
            self._finish(mark, self._write_timed(queue))
            return
        # Not run_in_executor: its two chained futures cost more than the rest of a small round.
        self._executor.submit(self._work, self._current.get_loop(), queue, mark)

    def _is_for_the_loop(self, queue: list[Data | Step]) -> bool:
        if not self._may_sync_inline or len(queue) > INLINE_APPENDS:
            return False
        limit_s = INLINE_LIMIT_S if len(queue) == 1 else SHARED_INLINE_LIMIT_S
        return self._last_s < limit_s and not any(map(callable, queue))

    def _work(self, loop: asyncio.AbstractEventLoop, queue: list[Data | Step], mark: Any) -> None:
        loop.call_soon_threadsafe(self._finish, mark, self._write_timed(queue))

    def _write_timed(self, queue: list[Data | Step]) -> BaseException | None:
        start = time.perf_counter()
        try:
            self._write(queue)
        except BaseException as raised:  # whatever it is, the waiters get it
            return self._taken_back(raised)
        finally:
            self._last_s = time.perf_counter() - start
        return None

    def _taken_back(self, error: BaseException) -> BaseException:
        """What is wrong once what was written is cut off, where there was no room for it."""
        if not isinstance(error, DiskFullError):
            return error
        try:
            self._file.cut()
        except BaseException as worse:  # now it is unknown what the file holds
            return worse
        return error

    def _write(self, queue: list[Data | Step]) -> None:
        pieces: list[Data] = []
        size = 0
        for item in queue:
            if not callable(item) and size + len(item) <= JOIN_LIMIT_BYTES:
                pieces.append(item)
                size += len(item)
                continue
            if pieces:
                self._file.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
                pieces, size = [], 0
            if callable(item):
                item()
            else:
                self._file.write(item)
        if pieces:
            self._file.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        self._file.sync()

    def _finish(self, mark: Any, error: BaseException | None) -> None:
        round_, self._current = self._current, None
        assert round_ is not None
        if error is not None:
            failed, self._next = [round_, self._next], None
            self._queue = []
            failure = self._fail(error)
            for waiting in failed:
                if waiting is not None:
                    waiting.set_exception(failure)
                    waiting.exception()  # a round may have no waiter (acks=0); asyncio must not warn about it
                    waiting.tell()
            return
        if self._on_synced is not None:
            self._on_synced(mark)
        round_.set_result(None)
        if self._next is not None and not self._is_for_the_loop(self._queue):
            self._start()  # the disk works while answers are written
        round_.tell()
        self._start()

    def _fail(self, error: BaseException) -> StorageError:
        failure: StorageError
        if isinstance(error, DiskFullError):
            failure = NoRoomError(
                f"{self._file.path}: {error.strerror}; nothing was written: make room, and send it again"
            )
        else:
            failure = self._failure = StorageError(
                f"{self._file.path}: {error}; nothing more is written to it: free or mend the disk, then restart the "
                "broker"
            )
        failure.__cause__ = error
        if self._on_failed is not None:
            self._on_failed(failure)
        return failure
