"""`SqliteStore`: processing details in a SQLite file, beside the handler's own tables.

The idea: SQLite has one writer, so there is one connection, and handlers run one after another inside it; waiting for
that is done in a lock of this process (fair enough), and for other processes in SQLite's own (`timeout_ms`). Commits
are synced (`synchronous=FULL`): an offset that is committed to Kafka must not be ahead of its effect. Handlers that
are ready at once would wait for as many syncs: so they commit together, each a savepoint in one transaction of SQLite,
and each goes on once that is committed.
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from keylane.delivery.statements import ADDED, Housekeeping, schema_of
from keylane.delivery.stores import Identity, Processed
from keylane.errors import StoreError, UsageError
from keylane.telling import logger_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

logger = logger_of("keylane.delivery")

OF_ONE = "WHERE scope = ? AND part = ? AND at = ? AND key = ?"
CLAIM = (
    "INSERT OR IGNORE INTO keylane_processed (scope, part, at, key, done_ms, checksum) SELECT ?1, ?2, ?3, ?4, ?5, ?6 "
    "WHERE ?3 >= coalesce((SELECT below FROM keylane_purged WHERE scope = ?1 AND part = ?2), -1)"
)
"""Nobody purges meanwhile: the transaction has the file's one lock of writers. Keys have the offset -1."""
FOUND = f"SELECT outputs, checksum FROM keylane_processed {OF_ONE}"
KEEP = f"UPDATE keylane_processed SET outputs = ? {OF_ONE}"

BUSY_S = 0.01
"""Between two tries where SQLite itself does not wait."""

END_S = 1.0
"""How long an asyncio loop stands still for the end of another transaction of its process."""

TOGETHER_S = 0.01
"""How long after its begin others may join a transaction, so that who has ended waits for one slow handler at most."""

WORTH_S = 0.00005
"""A commit that takes less costs less than it costs two threads to take turns."""

_writers: dict[Path, Writer] = {}
_writers_guard = threading.Lock()


@dataclass(frozen=True, slots=True)
class SqliteStore:
    """Keeps what is processed in a file of SQLite."""

    path: str
    """The database, which the handler's tables are in too."""
    timeout_ms: int = 30_000
    """How long a transaction waits for one of another process; then it is a failed attempt."""

    def __post_init__(self) -> None:
        if not self.path or self.path == ":memory:" or self.path.startswith("file:"):
            raise UsageError(f"SqliteStore({self.path!r}): give the path of a file, which outlives the process")

    def open(self) -> OpenSqlite:
        return OpenSqlite(self)

    async def open_async(self) -> AsyncSqlite:
        return AsyncSqlite(self.open())


class SqliteTransaction(Housekeeping):
    """A transaction on the one connection, while its block runs."""

    def __init__(self, opened: OpenSqlite) -> None:
        self._opened = opened
        self.connection = opened.connection

    def __enter__(self) -> Self:
        self._opened.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._opened.end("COMMIT" if kind is None else "ROLLBACK")

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self.connection.execute(statement.replace("%s", "?"), parameters)

    def is_open(self) -> bool:
        return self.connection.in_transaction

    def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        processed: dict[Identity, Processed] = {}
        execute = self.connection.cursor().execute
        now_ms = time.time_ns() // 1_000_000
        for one, checksum in checksums.items():
            if not execute(CLAIM, (*one, now_ms, checksum)).rowcount:
                outputs, kept = execute(FOUND, one).fetchone() or (None, None)  # it is purged
                processed[one] = Processed(outputs or b"", kept)
        return processed

    def keep_all(self, outputs: Mapping[Identity, bytes]) -> None:
        for identity, kept in outputs.items():
            self.connection.execute(KEEP, (kept, *identity))


class UndoneError(Exception):
    """A transaction was rolled back with the others that it would have been committed with."""

    def __init__(self) -> None:
        super().__init__("rolled back with the transactions of other records, which it would have been committed with")


class Together:
    """What is committed together."""

    def __init__(self, opened: OpenSqlite) -> None:
        self.opened = opened
        self.ends_at = time.monotonic() + TOGETHER_S
        """Nobody joins from then on."""
        self.members: list[Callable[[], object]] = []
        """Of each transaction in it that has ended, what tells it that all has."""
        self.is_undone = True
        """Until it is committed."""
        self._changes_before = opened.connection.total_changes

    @property
    def has_changes(self) -> bool:
        """Whether a commit has something to write."""
        return self.opened.connection.total_changes > self._changes_before


class Writer:
    """Who writes to a file in this process. Thread safety: all but `lock` is of who holds that."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: Together | None = None
        """What has begun, and is not committed. It has members when nobody holds the lock."""
        self._singly = 0
        """So many transactions are committed each by itself, as one of them may be what has undone others."""
        self._commit_s = math.inf
        """How long a commit takes, when no other thread keeps this one from going on: the least of some."""

    def begin(self, opened: OpenSqlite) -> None:
        """Begin a transaction, or a savepoint in the one that is open."""
        if self.open is not None and self.open.opened is not opened:
            self.settle()
        if self.open is None:
            opened.connection.execute("BEGIN IMMEDIATE")
            self.open = Together(opened)
        else:
            opened.connection.execute("SAVEPOINT keylane")

    def end_savepoint(self, together: Together, how: str) -> None:
        connection = together.opened.connection
        try:
            if how == "ROLLBACK":
                connection.execute("ROLLBACK TO keylane")
            connection.execute("RELEASE keylane")
        except BaseException:  # a handler has ended it, and begun another one
            self.undo()
            raise

    def may_join(self, together: Together) -> bool:
        """Whether the commit is worth to be waited for."""
        return not self._singly and self._commit_s >= WORTH_S and time.monotonic() < together.ends_at

    def commit(self) -> None:
        """Of all that is open. Raises `StoreError`, as `check_file`."""
        assert self.open is not None, "there is something to commit"
        self._singly = max(0, self._singly - 1)
        opened, began = self.open.opened, time.monotonic()
        try:
            opened.connection.execute("COMMIT")
            if self.open.has_changes:
                self._commit_s = min(time.monotonic() - began, 1.1 * self._commit_s)
            opened.check_file()
            self.open.is_undone = False
        finally:
            self.undo()

    def settle(self) -> bool:
        """Commit what is open for its members, if anything is. Whether that succeeded: else they run again, and meet
        each its own error."""
        if (together := self.open) is None:
            return True
        with suppress(sqlite3.Error, StoreError):
            self.commit()
        return not together.is_undone

    def undo(self) -> None:
        """End what is open; it is rolled back unless it is committed."""
        together, self.open = self.open, None
        assert together is not None, "there is something to end"
        if together.is_undone and together.members:
            self._singly = len(together.members) + 1
        try:
            if together.opened.connection.in_transaction:
                together.opened.connection.execute("ROLLBACK")
        finally:
            for tell in together.members:
                tell()


class OpenSqlite:
    """The connection, and the lock of those that write to its file."""

    def __init__(self, store: SqliteStore) -> None:
        self._timeout_ms = store.timeout_ms
        self._path = path = Path(store.path).resolve()
        with _writers_guard:
            self._writer = _writers.setdefault(path, Writer())
        self._waiting: deque[None] = deque()
        """One for each thread that waits for a transaction on this connection."""
        self.connection = sqlite3.connect(
            path, timeout=store.timeout_ms / 1000, isolation_level=None, check_same_thread=False
        )
        self._write_ahead(time.monotonic() + store.timeout_ms / 1000)
        self.connection.execute("PRAGMA synchronous = FULL")
        self._file = _file_at(path)
        self._make_tables()
        self._reading = threading.Lock()
        """Guards the second connection, which reads beside the transaction."""
        self._reader = sqlite3.connect(path, timeout=store.timeout_ms / 1000, check_same_thread=False)

    def _make_tables(self) -> None:
        with self.transaction() as transaction:
            for table in schema_of("sqlite"):
                transaction.run(table)
            for probe, add_column in ADDED.items():
                try:
                    transaction.run(probe)
                except sqlite3.OperationalError:  # a table of before
                    transaction.run(add_column.format(bigint="integer"))

    def _write_ahead(self, give_up_at: float) -> None:
        """SQLite waits for nobody here: while another connection writes, or changes the mode as well, it is refused."""
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up_at:
                    raise
                time.sleep(BUSY_S)
            else:
                return

    def transaction(self) -> SqliteTransaction:
        return SqliteTransaction(self)

    def begin(self) -> None:
        """Waits for the end of another transaction."""
        self._waiting.append(None)
        try:
            self._writer.lock.acquire()
        finally:
            self._waiting.pop()
        try:
            self._writer.begin(self)
        except BaseException:
            self._writer.lock.release()
            raise

    def begin_now(self) -> None:
        """Waits for one of this process, whose end is not far. Raises `BusyNowError`."""
        if not self._writer.lock.acquire(timeout=END_S):
            raise BusyNowError
        try:
            self.connection.execute("PRAGMA busy_timeout = 0")
            try:
                self._writer.begin(self)
            finally:
                self.connection.execute(f"PRAGMA busy_timeout = {self._timeout_ms}")
        except BaseException as error:
            self._writer.lock.release()
            if isinstance(error, sqlite3.OperationalError):
                raise BusyNowError from error
            raise

    def end(self, how: str) -> None:
        """Commit or roll back; after a commit that fails nothing stays open. Raises `StoreError`, as `check_file`, and
        `UndoneError`."""
        try:
            waits = self._ended(how)
        finally:
            self._writer.lock.release()
        if waits is not None:
            self._wait(*waits)

    def _ended(self, how: str) -> tuple[Together, threading.Lock] | None:
        """Returns what to wait for until the transaction is committed."""
        writer, together = self._writer, self._writer.open
        assert together is not None, "who ends has begun"
        if not self.connection.in_transaction:  # a handler has ended it
            writer.undo()
            return None
        if together.members:
            writer.end_savepoint(together, how)
        elif how == "ROLLBACK":
            writer.undo()
            return None
        if how == "COMMIT" and self._waiting and writer.may_join(together):
            member = threading.Lock()
            member.acquire()
            together.members.append(member.release)
            return together, member
        if not together.members:
            writer.commit()
        elif not writer.settle() and how == "COMMIT":
            raise UndoneError
        return None

    def leave(self, tell: Callable[[], object]) -> Together | None:
        """End a transaction whose commit others make, and then tell. Waits for nothing. None where it is to be
        committed by itself: it has not ended then."""
        writer, together = self._writer, self._writer.open
        assert together is not None, "who ends has begun"
        if not self.connection.in_transaction or not writer.may_join(together):
            return None
        try:
            if together.members:
                writer.end_savepoint(together, "COMMIT")
            together.members.append(tell)
        finally:
            writer.lock.release()
        return together

    def settle(self) -> None:
        """Commit what is open, if anything is."""
        with self._writer.lock:
            self._writer.settle()

    def _wait(self, together: Together, member: threading.Lock) -> None:
        """For the commit, which the last one that joins makes; or this one, where none has joined."""
        while not member.acquire(timeout=TOGETHER_S):
            if self._writer.lock.acquire(blocking=False):
                try:
                    if self._writer.open is together:
                        self._writer.settle()
                finally:
                    self._writer.lock.release()
        if together.is_undone:
            raise UndoneError

    def check_file(self) -> None:
        """Raises `StoreError` where the file is another one than this connection's, to which no name leads any more."""
        if _file_at(self._path) != self._file:
            raise StoreError(
                f"the file {self._path} was replaced or removed under this process: was it restored? What was written "
                "to what it was counts for nothing; start again: what the group has not committed runs again, and what "
                "it has and the store has not is told"
            )

    def find(self, identities: Collection[Identity]) -> Collection[Identity]:
        with self._reading:
            return [one for one in identities if self._reader.execute(FOUND, one).fetchone() is not None]

    def close(self) -> None:
        with self._writer.lock:
            self._writer.settle()
            self.connection.close()
        with self._reading:
            self._reader.close()


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file a path leads to now. Each commit asks, and pathlib takes twice as long."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class BusyNowError(BaseException):
    """The transaction of another coroutine is open, and this one may not wait for it: the loop would stand still."""


class AsyncSqlite:
    """The same for coroutines: what may wait is done on threads, one at a time."""

    def __init__(self, opened: OpenSqlite) -> None:
        self._opened = opened
        self._turn = asyncio.Lock()
        """Held by who waits for the transaction, until it has ended."""
        self._is_inside = False
        """Whether a coroutine is between the begin of its transaction and the end."""
        self._is_beginning = False
        """Whether a thread waits for the transaction, for a coroutine that goes on only once the loop does."""
        self._is_held = False
        """Whether handlers were seen to wait for something else inside their transactions: then each begins with it."""
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="keylane-sqlite")
        """One may wait for a transaction that the other one ends."""
        self._committing = ThreadPoolExecutor(1, thread_name_prefix="keylane-sqlite-commit")

    @property
    def may_begin_now(self) -> bool:
        return not self._is_held

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSqliteTransaction]:
        async with self._turn:
            self._is_beginning = True
            try:
                await self._on_thread(self._opened.begin, undo=partial(self._opened.end, "ROLLBACK"))
            finally:
                self._is_beginning = False
            async with AsyncSqliteTransaction(self) as transaction:
                yield transaction

    def begin_now(self) -> AsyncSqliteTransaction:
        """A transaction that begins at once, and ends with its block. At most the end of another one is waited for.
        Raises `BusyNowError`."""
        if self._is_inside and not self._is_held:
            self._is_held = True
            logger.warning(
                "a handler waits for something while its transaction is open: SQLite has one writer, so that calls run "
                "one after another from now on; have it wait before it first uses context.transaction"
            )
        if self._is_inside or self._is_beginning:
            raise BusyNowError
        self._opened.begin_now()
        return AsyncSqliteTransaction(self)

    async def wait_until_free(self) -> None:
        """Until a transaction could begin."""
        async with self.transaction():
            pass

    def inside(self) -> SqliteTransaction:
        """A coroutine goes on in the transaction, which has begun."""
        self._is_inside = True
        return self._opened.transaction()

    async def end(self, how: str) -> None:
        """Transactions of coroutines that are ready commit together."""
        self._is_inside = False
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        tell = partial(loop.call_soon_threadsafe, told.set_result, None)
        together = self._opened.leave(tell) if how == "COMMIT" else None
        if together is None:
            await self._on_thread(self._opened.end, how)
            return
        if len(together.members) == 1:
            loop.call_soon(loop.run_in_executor, self._committing, self._opened.settle)
        await _until(told)
        if together.is_undone:
            raise UndoneError

    async def _on_thread(self, do: Any, *arguments: Any, undo: Any = None) -> None:
        """Whatever happens to the one who waits, `do` comes to its end before the next one has its turn."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, do, *arguments)
        try:
            await _until(running)
        except asyncio.CancelledError:
            if undo is not None and running.exception() is None:
                await asyncio.get_running_loop().run_in_executor(self._threads, undo)
            raise

    async def find(self, identities: Collection[Identity]) -> Collection[Identity]:
        return self._opened.find(identities)

    async def close(self) -> None:
        await self._on_thread(self._opened.close)
        self._threads.shutdown()
        self._committing.shutdown()


async def _until(ended: asyncio.Future[None]) -> None:
    """This comes to its end first where who waits for it is cancelled."""
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        await asyncio.wait([ended])
        raise


class AsyncSqliteTransaction:
    """Single statements in the file's cache: they do not wait, and run where they are called. It has begun, and ends
    with its block."""

    def __init__(self, opened: AsyncSqlite) -> None:
        self._opened = opened
        self._transaction = opened.inside()
        self.connection = self._transaction.connection
        self.is_open = self._transaction.is_open
        self.claim_now = self._transaction.claim_all

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._opened.end("COMMIT" if kind is None else "ROLLBACK")

    async def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        return self.claim_now(checksums)

    async def keep_all(self, outputs: Mapping[Identity, bytes]) -> None:
        self._transaction.keep_all(outputs)
