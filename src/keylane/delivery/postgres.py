"""`PostgresStore`: processing details in PostgreSQL, beside the handler's own tables (psycopg 3, with its pool).

The idea: the primary key decides. Two transactions that claim one identity meet in the index: the second waits for the
end of the first, and then finds its row, or takes its place. The offset below which identities were purged is read
after the claim, with a snapshot of its own, so that a purge in between is seen.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keylane.delivery.stores import Identity, Processed
from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

LOCK = "SELECT pg_advisory_xact_lock(7205011)"
"""Keeps others from making the same tables at once."""
PROCESSED = """
    CREATE TABLE IF NOT EXISTS keylane_processed (
        scope text NOT NULL, part integer NOT NULL, at bigint NOT NULL, key text NOT NULL, done_ms bigint NOT NULL,
        outputs bytea, PRIMARY KEY (scope, part, at, key))"""
PURGED_TABLE = """
    CREATE TABLE IF NOT EXISTS keylane_purged (
        scope text NOT NULL, part integer NOT NULL, below bigint NOT NULL, PRIMARY KEY (scope, part))"""
TABLES = (LOCK, PROCESSED, PURGED_TABLE)

_THIS = "WHERE scope = %s AND part = %s AND at = %s AND key = %s"
INSERT = "INSERT INTO keylane_processed VALUES (%s, %s, %s, %s, %s, NULL) ON CONFLICT DO NOTHING"
OUTPUTS = f"SELECT outputs FROM keylane_processed {_THIS}"
KEEP = f"UPDATE keylane_processed SET outputs = %s {_THIS}"
FORGET = f"DELETE FROM keylane_processed {_THIS}"
PURGED = "SELECT below FROM keylane_purged WHERE scope = %s AND part = %s"
NOTE_PURGED = (
    "INSERT INTO keylane_purged VALUES (%s, %s, %s) ON CONFLICT (scope, part) "
    "DO UPDATE SET below = greatest(keylane_purged.below, excluded.below)"
)
PURGE = "DELETE FROM keylane_processed WHERE scope = %s AND part = %s AND at < %s"
PURGE_BEFORE = "DELETE FROM keylane_processed WHERE scope = %s AND done_ms < %s"


@dataclass(frozen=True, slots=True)
class PostgresStore:
    """`conninfo` as libpq takes it (`postgresql://user@host/database`). At most `connections` transactions are open at
    once in a process; a handler waits `timeout_ms` for one, and then that is a failed attempt.

    `idle_timeout_ms`: the server ends a transaction in which nothing happened for so long, so that a frozen process
    does not keep its successor from the same record for ever; a handler that waits longer between two statements
    fails.
    """

    conninfo: str = field(repr=False)
    connections: int = 10
    timeout_ms: int = 30_000
    idle_timeout_ms: int = 60_000

    def open(self) -> OpenPostgres:
        _, pools = _imported()
        pool = pools.ConnectionPool(_checked(self.conninfo), **self._settings())
        pool.open()
        opened = OpenPostgres(pool)
        try:
            with opened.transaction() as transaction:
                for statement in TABLES:
                    transaction.connection.execute(statement)
        except BaseException:
            pool.close()
            raise
        return opened

    async def open_async(self) -> AsyncPostgres:
        _, pools = _imported()
        pool = pools.AsyncConnectionPool(_checked(self.conninfo), **self._settings())
        await pool.open()
        opened = AsyncPostgres(pool)
        try:
            async with opened.transaction() as transaction:
                for statement in TABLES:
                    await transaction.connection.execute(statement)
        except BaseException:
            await pool.close()
            raise
        return opened

    def _settings(self) -> dict[str, Any]:
        options = f"-c idle_in_transaction_session_timeout={self.idle_timeout_ms}"
        return {
            "min_size": 1,
            "max_size": self.connections,
            "timeout": self.timeout_ms / 1000,
            "open": False,
            "kwargs": {"options": options},
        }


class PostgresTransaction:
    """A transaction on a connection of the pool."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def is_open(self) -> bool:
        return _is_open(self.connection)

    def claim(self, identity: Identity) -> Processed | None:
        execute = self.connection.execute
        if execute(INSERT, (*identity, _now_ms())).rowcount == 0:
            return _processed(execute(OUTPUTS, identity).fetchone())
        if identity.offset >= 0 and identity.offset < self.purged_below(identity.scope, identity.partition):
            execute(FORGET, identity)
            return Processed()
        return None

    def keep(self, identity: Identity, outputs: bytes) -> None:
        self.connection.execute(KEEP, (outputs, *identity))

    def purged_below(self, scope: str, partition: int) -> int:
        return _below(self.connection.execute(PURGED, (scope, partition)).fetchone())

    def purge(self, scope: str, partition: int, below: int) -> None:
        self.connection.execute(NOTE_PURGED, (scope, partition, below))
        self.connection.execute(PURGE, (scope, partition, below))

    def purge_before(self, scope: str, before_ms: int) -> None:
        self.connection.execute(PURGE_BEFORE, (scope, before_ms))


class OpenPostgres:
    """A pool for threads."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        with self._pool.connection() as connection:
            yield PostgresTransaction(connection)

    def close(self) -> None:
        self._pool.close()


class AsyncPostgresTransaction:
    """The same on an asyncio loop."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def is_open(self) -> bool:
        return _is_open(self.connection)

    async def claim(self, identity: Identity) -> Processed | None:
        execute = self.connection.execute
        if (await execute(INSERT, (*identity, _now_ms()))).rowcount == 0:
            return _processed(await (await execute(OUTPUTS, identity)).fetchone())
        if identity.offset >= 0:
            below = await (await execute(PURGED, identity[:2])).fetchone()
            if identity.offset < _below(below):
                await execute(FORGET, identity)
                return Processed()
        return None

    async def keep(self, identity: Identity, outputs: bytes) -> None:
        await self.connection.execute(KEEP, (outputs, *identity))


class AsyncPostgres:
    """A pool for coroutines."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncPostgresTransaction]:
        async with self._pool.connection() as connection:
            yield AsyncPostgresTransaction(connection)

    async def close(self) -> None:
        await self._pool.close()


def _imported() -> tuple[Any, Any]:
    try:
        import psycopg
        import psycopg_pool
    except ImportError as error:
        raise UsageError(f"PostgresStore needs psycopg ({error}): pip install 'keylane[postgres]'") from None
    return psycopg, psycopg_pool


def _checked(conninfo: str) -> str:
    """Raises `UsageError` for what libpq cannot read, in words of our own: libpq's repeat the password in it."""
    psycopg, _ = _imported()
    try:
        psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise UsageError(
            "PostgresStore: libpq cannot read the address (it is not shown, as it may hold a password): give "
            "postgresql://user@host/database, or NAME=VALUE pairs"
        ) from None
    return conninfo


def _is_open(connection: Any) -> bool:
    return int(connection.info.transaction_status) == _IN_TRANSACTION


_IN_TRANSACTION = 2
"""libpq's PQTRANS_INTRANS."""


def _processed(row: Any) -> Processed:
    return Processed(bytes(row[0]) if row and row[0] else b"")


def _below(row: Any) -> int:
    return int(row[0]) if row else 0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
