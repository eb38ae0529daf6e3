"""`SqliteStore`: processing details in a SQLite file, beside the handler's own tables.

The idea: SQLite has one writer, so there is one connection, and handlers run one after another inside it; waiting for
that is done in a lock of this process (fair enough), and for other processes in SQLite's own (`timeout_ms`). Commits
are synced (`synchronous=FULL`): an offset that is committed to Kafka must not be ahead of its effect.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keylane.delivery.stores import Identity, Processed
from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

TABLES = (
    """
    CREATE TABLE IF NOT EXISTS keylane_processed (
        scope TEXT NOT NULL, part INTEGER NOT NULL, at INTEGER NOT NULL, key TEXT NOT NULL, done_ms INTEGER NOT NULL,
        outputs BLOB, PRIMARY KEY (scope, part, at, key)) WITHOUT ROWID""",
    """
    CREATE TABLE IF NOT EXISTS keylane_purged (
        scope TEXT NOT NULL, part INTEGER NOT NULL, below INTEGER NOT NULL, PRIMARY KEY (scope, part)) WITHOUT ROWID""",
)

BUSY_S = 0.01
"""Between two tries where SQLite itself does not wait."""

_writing: dict[Path, threading.Lock] = {}
"""Of each file, who writes in this process."""
_writing_guard = threading.Lock()


@dataclass(frozen=True, slots=True)
class SqliteStore:
    """`path` is the database file, which the handler's tables are in too. `timeout_ms`: how long a transaction waits
    for one of another process; then it is a failed attempt."""

    path: str
    timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if not self.path or self.path == ":memory:" or self.path.startswith("file:"):
            raise UsageError(f"SqliteStore({self.path!r}): give the path of a file, which outlives the process")

    def open(self) -> OpenSqlite:
        return OpenSqlite(self)

    async def open_async(self) -> AsyncSqlite:
        return AsyncSqlite(self.open())


class SqliteTransaction:
    """An open transaction on the one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def is_open(self) -> bool:
        return self.connection.in_transaction

    def claim(self, identity: Identity) -> Processed | None:
        if identity.offset >= 0 and identity.offset < self.purged_below(identity.scope, identity.partition):
            return Processed()
        made = self.connection.execute(
            "INSERT OR IGNORE INTO keylane_processed VALUES (?, ?, ?, ?, ?, NULL)",
            (*identity, time.time_ns() // 1_000_000),
        )
        if made.rowcount:
            return None
        found = self.connection.execute(f"SELECT outputs FROM keylane_processed {_THIS}", identity).fetchone()
        return Processed(found[0] or b"")

    def keep(self, identity: Identity, outputs: bytes) -> None:
        self.connection.execute(f"UPDATE keylane_processed SET outputs = ? {_THIS}", (outputs, *identity))

    def purged_below(self, scope: str, partition: int) -> int:
        found = self.connection.execute(
            "SELECT below FROM keylane_purged WHERE scope = ? AND part = ?", (scope, partition)
        ).fetchone()
        return int(found[0]) if found else 0

    def purge(self, scope: str, partition: int, below: int) -> None:
        self.connection.execute(
            "INSERT INTO keylane_purged VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET below = max(below, excluded.below)",
            (scope, partition, below),
        )
        self.connection.execute(
            "DELETE FROM keylane_processed WHERE scope = ? AND part = ? AND at < ?", (scope, partition, below)
        )

    def purge_before(self, scope: str, before_ms: int) -> None:
        self.connection.execute("DELETE FROM keylane_processed WHERE scope = ? AND done_ms < ?", (scope, before_ms))


_THIS = "WHERE scope = ? AND part = ? AND at = ? AND key = ?"


class OpenSqlite:
    """The connection, and the lock of those that write to its file."""

    def __init__(self, store: SqliteStore) -> None:
        path = Path(store.path).resolve()
        with _writing_guard:
            self.writing = _writing.setdefault(path, threading.Lock())
        self._connection = sqlite3.connect(
            path, timeout=store.timeout_ms / 1000, isolation_level=None, check_same_thread=False
        )
        self._write_ahead(time.monotonic() + store.timeout_ms / 1000)
        self._connection.execute("PRAGMA synchronous = FULL")
        with self.transaction():
            for table in TABLES:
                self._connection.execute(table)

    def _write_ahead(self, give_up_at: float) -> None:
        """SQLite waits for nobody here: while another connection writes, or changes the mode as well, it is refused."""
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up_at:
                    raise
                time.sleep(BUSY_S)
            else:
                return

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        with self.writing:
            yield from self.begun()

    def begun(self) -> Iterator[SqliteTransaction]:
        """A transaction, under the lock."""
        self.begin()
        try:
            yield SqliteTransaction(self._connection)
        except BaseException:
            self.end("ROLLBACK")
            raise
        self.end("COMMIT")

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def end(self, how: str) -> None:
        """Commit or roll back; after a commit that fails nothing stays open."""
        try:
            if self._connection.in_transaction:
                self._connection.execute(how)
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @property
    def connection(self) -> sqlite3.Connection:
        return self._connection

    def close(self) -> None:
        with self.writing:
            self._connection.close()


class AsyncSqlite:
    """The same for coroutines: what may wait is done on a thread, one at a time."""

    def __init__(self, opened: OpenSqlite) -> None:
        self._opened = opened
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="keylane-sqlite")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSqliteTransaction]:
        async with self._turn:
            await self._on_thread(self._begin, undo=self._give_up)
            try:
                yield AsyncSqliteTransaction(SqliteTransaction(self._opened.connection))
            except BaseException:
                await self._on_thread(self._end, "ROLLBACK")
                raise
            await self._on_thread(self._end, "COMMIT")

    def _begin(self) -> None:
        self._opened.writing.acquire()
        try:
            self._opened.begin()
        except BaseException:
            self._opened.writing.release()
            raise

    def _end(self, how: str) -> None:
        try:
            self._opened.end(how)
        finally:
            self._opened.writing.release()

    def _give_up(self) -> None:
        self._end("ROLLBACK")

    async def _on_thread(self, do: Any, *arguments: Any, undo: Any = None) -> None:
        """Whatever happens to the one who waits, `do` comes to its end before the next one has its turn."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, do, *arguments)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            if undo is not None and running.exception() is None:
                await asyncio.get_running_loop().run_in_executor(self._thread, undo)
            raise

    async def close(self) -> None:
        await self._on_thread(self._opened.close)
        self._thread.shutdown()


class AsyncSqliteTransaction:
    """Single statements in the file's cache: they do not wait, and run where they are called."""

    def __init__(self, transaction: SqliteTransaction) -> None:
        self._transaction = transaction
        self.connection = transaction.connection
        self.is_open = transaction.is_open

    async def claim(self, identity: Identity) -> Processed | None:
        return self._transaction.claim(identity)

    async def keep(self, identity: Identity, outputs: bytes) -> None:
        self._transaction.keep(identity, outputs)
