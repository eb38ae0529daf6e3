"""`PostgresStore`: processing details in PostgreSQL, beside the handler's own tables (psycopg 3, with its pool).

The idea: the primary key decides. Two transactions that claim one identity meet in the index: the second waits for the
end of the first, and then finds its row, or takes its place. The offset below which identities were purged is read
after the claim, with a snapshot of its own, so that a purge in between is seen.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.delivery.statements import OF_ONE, OF_PARTITION, PROBES, Housekeeping, Rows, schema_of
from keylane.delivery.stores import Identity, Processed
from keylane.errors import PeerError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence

    from keylane.delivery.deferred import DeferredConnection

LOCK = "SELECT pg_advisory_xact_lock(7205011)"
"""Keeps others from making the same tables at once."""
COLUMNS = "(scope, part, at, key, done_ms, checksum)"
CLAIM = f"INSERT INTO keylane_processed {COLUMNS} VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING 1"
CLAIMS = (
    f"INSERT INTO keylane_processed {COLUMNS} SELECT %s, part, at, key, %s, checksum FROM "
    "unnest(%s::int[], %s::bigint[], %s::text[], %s::bigint[]) AS given(part, at, key, checksum) "
    "ON CONFLICT DO NOTHING RETURNING part, at, key"
)
"""In the order of the arrays."""
OF_SOME = "WHERE scope = %s AND (part, at, key) IN (SELECT * FROM unnest(%s::int[], %s::bigint[], %s::text[]))"
FOUND = f"SELECT part, at, key, outputs, checksum FROM keylane_processed {OF_SOME}"
KNOWN = f"SELECT part, at, key FROM keylane_processed {OF_SOME}"
FORGET = f"DELETE FROM keylane_processed {OF_SOME}"
KEEP = f"UPDATE keylane_processed SET outputs = %s {OF_ONE}"
PURGED = "SELECT part, below FROM keylane_purged WHERE scope = %s AND part = ANY(%s::int[])"
PURGED_OF_ONE = "SELECT part, below FROM keylane_purged WHERE scope = %s AND part = %s"
LOCKED = " FOR SHARE"
"""Of `PURGED` where statements of a transaction share one snapshot: a mark that is newer than that is an error."""

MANY = 4
"""Statements."""

IN_TRANSACTION = 2
"""libpq's PQTRANS_INTRANS."""
ABSENT = ("42P01", "42703")
"""SQLSTATE: no such table, no such column."""
NOT_ALLOWED = ("42501",)
SQL_ASCII = b"SQL_ASCII"
"""The encoding of a database that was made under the locale C and names no other one: in it psycopg leaves text as
bytes, so that no key would be the one that was asked for. Its bytes are what UTF-8 sends and reads."""
TEXT = {"client_encoding": "UTF8"}
REPEAT = ("40001", "40P01")
"""SQLSTATE: could not serialize, deadlock: the same transaction may well succeed."""


class Server(NamedTuple):
    """What was learnt of the server when the store was opened."""

    settings: dict[str, Any]
    """For each connection."""
    is_pooled: bool
    """Whether connections go through a pooler that keeps no settings of a session (PgBouncer)."""
    shares_snapshot: bool
    """Whether statements of a transaction share one (repeatable read, serializable)."""
    idle_timeout_ms: int

    @property
    def first(self) -> str:
        """What every transaction begins with; empty for nothing."""
        return f"SET LOCAL idle_in_transaction_session_timeout = {self.idle_timeout_ms}" if self.is_pooled else ""

    def purged(self, scope: str, partitions: list[int]) -> tuple[str, tuple[Any, ...]]:
        lock = LOCKED if self.shares_snapshot else ""
        if len(partitions) == 1:
            return PURGED_OF_ONE + lock, (scope, partitions[0])
        return PURGED + lock, (scope, partitions)


@dataclass(frozen=True, slots=True)
class PostgresStore:
    """Keeps what is processed in PostgreSQL, beside the handler's tables."""

    conninfo: str = field(repr=False)
    """As libpq takes it: `postgresql://user@host/database`."""
    connections: int = 10
    """At most so many transactions are open at once in a process."""
    timeout_ms: int = 30_000
    """How long a handler waits for a connection; then it is a failed attempt."""
    idle_timeout_ms: int = 60_000
    """The server ends a transaction in which nothing happened for so long, so that a frozen process does not keep its
    successor from the same record for ever; a handler that waits longer between two statements fails."""

    def open(self) -> OpenPostgres:
        psycopg, pools = _imported()
        server = self._prepared(psycopg)
        pool = pools.ConnectionPool(_checked(self.conninfo), **self._pooling(server))
        pool.open()
        return OpenPostgres(pool, server)

    async def open_async(self) -> AsyncPostgres:
        psycopg, pools = _imported()
        server = self._prepared(psycopg)  # once, at the start: nothing runs on the loop yet
        pool = pools.AsyncConnectionPool(_checked(self.conninfo), **self._pooling(server))
        await pool.open()
        return AsyncPostgres(pool, server)

    def _pooling(self, server: Server) -> dict[str, Any]:
        return {
            "min_size": 1,
            "max_size": self.connections,
            "timeout": self.timeout_ms / 1000,
            "open": False,
            "kwargs": server.settings,
        }

    def _prepared(self, psycopg: Any) -> Server:
        """Learn what the server takes, and make what is missing in it."""
        given = _given_options(psycopg, _checked(self.conninfo))
        ours = f"-c idle_in_transaction_session_timeout={self.idle_timeout_ms}"
        settings: dict[str, Any] = {"options": f"{given} {ours}".strip()}
        try:
            connection = psycopg.connect(self.conninfo, **settings)
        except psycopg.OperationalError as error:
            if "startup parameter" not in str(error):
                raise
            _check_pooler(given)
            settings = {}
            connection = psycopg.connect(self.conninfo, **settings)
        has_bytes = connection.pgconn.parameter_status(b"client_encoding") == SQL_ASCII
        with connection:
            if has_bytes:
                connection.execute("SET client_encoding TO 'UTF8'")
            (timeout,) = connection.execute(
                "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
            ).fetchone()
            is_pooled = not settings or timeout != str(self.idle_timeout_ms)
            if is_pooled:
                _check_pooler(given)
                settings = {"prepare_threshold": None}
            (isolation,) = connection.execute("SHOW transaction_isolation").fetchone()
            connection.rollback()
            if is_pooled:
                connection.prepare_threshold = None
            _make_tables(psycopg, connection)
        if has_bytes:
            settings |= TEXT
        return Server(settings, is_pooled, isolation != "read committed", self.idle_timeout_ms)


class PostgresTransaction(Housekeeping):
    """A transaction on a connection of the pool."""

    lock = " FOR UPDATE"

    def __init__(self, connection: Any, server: Server) -> None:
        self.connection = connection
        self._server = server
        self._kept: list[tuple[Any, ...]] = []
        """Outputs, for the end: many travel at once, with COMMIT."""

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        rows: Rows = self.connection.execute(statement, parameters)
        return rows

    def is_open(self) -> bool:
        return _is_open(self.connection)

    def count_keys(self, scope: str, keys: Collection[str]) -> int:
        count = f"SELECT count(*) FROM keylane_processed {OF_PARTITION} AND at = -1 AND key = ANY(%s)"
        return int(self.run(count, (scope, -1, list(keys))).fetchone()[0])

    def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        processed: dict[Identity, Processed] = {}
        execute = self.connection.execute
        for claim in Claim.of(checksums):
            if self._server.first:
                execute(self._server.first)
            claimed = execute(*claim.insert)
            purged = execute(*claim.purged(self._server)) if claim.partitions else None
            fresh = claim.fresh(claimed.fetchall())
            if len(fresh) < len(claim.identities):
                processed |= claim.found(execute(*claim.others(fresh)).fetchall())
            if purged is not None and (late := claim.late(fresh, purged.fetchall())):
                execute(FORGET, claim.arrays(late))
                processed |= dict.fromkeys(late, Processed())
        return processed

    def keep_all(self, outputs: Mapping[Identity, bytes]) -> None:
        self._kept += [(kept, *identity) for identity, kept in outputs.items()]

    def end(self) -> None:
        if self._kept:
            with _together(self.connection, len(self._kept)):
                for parameters in self._kept:
                    self.connection.execute(KEEP, parameters)
                self.connection.execute("COMMIT")


class Claim:
    """Identities of one scope, in their order, as statements and their answers."""

    def __init__(self, scope: str, identities: list[Identity], checksums: Mapping[Identity, int | None]) -> None:
        self.scope = scope
        self.identities = identities
        self._checksums = checksums
        self.partitions = sorted({one.partition for one in identities if one.offset >= 0})

    @classmethod
    def of(cls, checksums: Mapping[Identity, int | None]) -> list[Claim]:
        if len(checksums) == 1:
            identities = list(checksums)
            return [cls(identities[0].scope, identities, checksums)]
        each = groupby(sorted(checksums), attrgetter("scope"))  # sorted: two that claim the same ones do not deadlock
        return [cls(scope, list(some), checksums) for scope, some in each]

    @property
    def insert(self) -> tuple[str, tuple[Any, ...]]:
        now_ms = time.time_ns() // 1_000_000
        if len(self.identities) == 1:
            one = self.identities[0]
            return CLAIM, (*one, now_ms, self._checksums[one])
        _, *arrays = self.arrays(self.identities)
        return CLAIMS, (self.scope, now_ms, *arrays, [self._checksums[one] for one in self.identities])

    def purged(self, server: Server) -> tuple[str, tuple[Any, ...]]:
        return server.purged(self.scope, self.partitions)

    def fresh(self, rows: list[Any]) -> Collection[Identity]:
        """Those that were inserted."""
        if len(rows) == len(self.identities):
            return self.identities
        return {Identity(self.scope, *row) for row in rows} if rows and len(rows[0]) > 1 else []

    def others(self, fresh: Collection[Identity]) -> tuple[str, tuple[Any, ...]]:
        return FOUND, self.arrays([one for one in self.identities if one not in fresh])

    def found(self, rows: list[Any]) -> dict[Identity, Processed]:
        return {
            Identity(self.scope, *place): Processed(bytes(outputs or b""), checksum)
            for *place, outputs, checksum in rows
        }

    def late(self, fresh: Collection[Identity], rows: list[Any]) -> list[Identity]:
        """Of the fresh ones, those that others have processed so long ago that it is purged."""
        below = dict(rows)
        return [one for one in fresh if 0 <= one.offset < below.get(one.partition, 0)]

    def arrays(self, identities: Collection[Identity]) -> tuple[Any, ...]:
        return (
            self.scope,
            [one.partition for one in identities],
            [one.offset for one in identities],
            [one.key for one in identities],
        )


class OpenPostgres:
    """A pool for threads."""

    def __init__(self, pool: Any, server: Server) -> None:
        self._pool = pool
        self._server = server

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        with self._pool.connection() as connection:
            transaction = PostgresTransaction(connection, self._server)
            yield transaction
            transaction.end()

    def find(self, identities: Collection[Identity]) -> Collection[Identity]:
        with self._pool.connection() as connection:
            return [
                Identity(one.scope, *row)
                for one in Claim.of(dict.fromkeys(identities))
                for row in connection.execute(KNOWN, one.arrays(one.identities)).fetchall()
            ]

    def close(self) -> None:
        self._pool.close()


class AsyncPostgresTransaction:
    """The same on an asyncio loop."""

    def __init__(self, connection: Any, server: Server) -> None:
        self.connection = connection
        self._server = server
        self._kept: list[tuple[Any, ...]] = []

    def is_open(self) -> bool:
        return _is_open(self.connection)

    async def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        processed: dict[Identity, Processed] = {}
        execute = self.connection.execute
        task = asyncio.current_task()
        for claim in Claim.of(checksums):
            if self._server.first:
                await execute(self._server.first)
            claimed = await execute(*claim.insert)
            purged = await execute(*claim.purged(self._server)) if claim.partitions else None
            fresh = claim.fresh(await claimed.fetchall())
            if len(fresh) < len(claim.identities):
                processed |= claim.found(await (await execute(*claim.others(fresh))).fetchall())
            if purged is not None and (late := claim.late(fresh, await purged.fetchall())):
                await execute(FORGET, claim.arrays(late))
                processed |= dict.fromkeys(late, Processed())
        if task is not None and task.cancelling():  # asyncio.wait_for of Python 3.11 may lose a cancellation
            raise asyncio.CancelledError
        return processed

    async def keep_all(self, outputs: Mapping[Identity, bytes]) -> None:
        self._kept += [(kept, *identity) for identity, kept in outputs.items()]

    async def end(self) -> None:
        if self._kept:
            async with _together(self.connection, len(self._kept)):
                for parameters in self._kept:
                    await self.connection.execute(KEEP, parameters)
                await self.connection.execute("COMMIT")


class AsyncPostgres:
    """A pool for coroutines."""

    def __init__(self, pool: Any, server: Server) -> None:
        self._pool = pool
        self._server = server

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncPostgresTransaction]:
        async with self._pool.connection() as connection:
            transaction = AsyncPostgresTransaction(connection, self._server)
            yield transaction
            await transaction.end()

    def deferred(self, begin: Callable[[], Awaitable[Any]]) -> DeferredConnection:
        """What a handler gets whose transaction has not begun."""
        from keylane.delivery.deferred import DeferredConnection

        return DeferredConnection(begin)

    async def find(self, identities: Collection[Identity]) -> Collection[Identity]:
        async with self._pool.connection() as connection:
            return [
                Identity(one.scope, *row)
                for one in Claim.of(dict.fromkeys(identities))
                for row in await (await connection.execute(KNOWN, one.arrays(one.identities))).fetchall()
            ]

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


def _given_options(psycopg: Any, conninfo: str) -> str:
    """What the user has libpq ask of the server: in the address, a service file, or the environment."""
    given = psycopg.conninfo.conninfo_to_dict(conninfo).get("options")
    return str(given if given is not None else os.environ.get("PGOPTIONS", ""))


def _check_pooler(given: str) -> None:
    """Raises `UsageError` where a pooler would drop what the user asks for."""
    if given:
        raise UsageError(
            f"PostgresStore: options={given!r} do not reach the server, since a pooler (PgBouncer?) is in between: set "
            "them there (ALTER ROLE … SET …, or connect_query), or connect to PostgreSQL itself"
        )


def _make_tables(psycopg: Any, connection: Any) -> None:
    try:
        for probe in PROBES:
            connection.execute(probe)
    except psycopg.Error as error:
        if error.sqlstate not in ABSENT:
            raise
    else:
        connection.rollback()
        return
    connection.rollback()
    try:
        for statement in (LOCK, *schema_of("postgresql")):
            connection.execute(statement)
        connection.commit()
    except psycopg.Error as error:
        if error.sqlstate not in NOT_ALLOWED:
            raise
        raise PeerError(
            f"PostgresStore: its tables are missing, or of an earlier version, and this role may not make them ("
            f"{error.diag.message_primary}): `keylane store schema` prints the statements for whoever may"
        ) from error


def _together(connection: Any, statements: int) -> Any:
    """What is executed in it goes to the server at once, where libpq can do that. For few statements it costs more time
    than it saves."""
    return connection.pipeline() if statements > MANY and _has_pipeline() else nullcontext()


@cache
def _has_pipeline() -> bool:
    psycopg, _ = _imported()
    return bool(psycopg.Pipeline.is_supported())


def _is_open(connection: Any) -> bool:
    return int(connection.info.transaction_status) == IN_TRANSACTION
