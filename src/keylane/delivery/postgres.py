"""`PostgresStore`: processing details in PostgreSQL, beside the handler's own tables (psycopg 3, with its pool).

The idea: the primary key decides. Two transactions that claim one identity meet in the index: the second waits for the
end of the first, and then finds its row, or takes its place. The offset below which identities were purged is read
after the claim, with a snapshot of its own, so that a purge in between is seen. BEGIN, the claim and that look are one
text of three statements, so that they are one round trip. It has no parameters: a single claim runs what its connection
has prepared, and many are rows of VALUES. That is why connections are in autocommit, where psycopg begins nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from keylane.delivery.statements import OF_ONE, OF_PARTITION, PROBES, Housekeeping, Rows, schema_of
from keylane.delivery.stores import Identity, Processed
from keylane.errors import PeerError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from keylane.delivery.deferred import DeferredConnection

LOCK = "SELECT pg_advisory_xact_lock(7205011)"
"""Keeps others from making the same tables at once."""
CLAIM = (
    "INSERT INTO keylane_processed (scope, part, at, key, done_ms, checksum) VALUES {rows} "
    "ON CONFLICT DO NOTHING RETURNING scope, part, at, key"
)
PURGED = "SELECT scope, part, below FROM keylane_purged WHERE (scope, part) IN ({partitions})"
LOCKED = " FOR SHARE"
"""Of `PURGED` where statements of a transaction share one snapshot: a mark that is newer than that is an error."""
OF_SOME = "(VALUES {rows}) AS given (scope, part, at, key)"
KNOWN = f"SELECT scope, part, at, key FROM keylane_processed JOIN {OF_SOME} USING (scope, part, at, key)"
FOUND = (
    f"SELECT scope, part, at, key, outputs, checksum FROM keylane_processed JOIN {OF_SOME} USING (scope, part, at, key)"
)
FORGET = (
    f"DELETE FROM keylane_processed AS one USING {OF_SOME} WHERE (one.scope, one.part, one.at, one.key) = "
    "(given.scope, given.part, given.at, given.key)"
)
KEEP = f"UPDATE keylane_processed SET outputs = %s {OF_ONE}"

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
SILENT_S = 30
"""How long a server may be silent, behind a firewall that drops or a host that is gone, before whoever waits for it
gets an error. libpq alone waits for up to two hours."""
PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": (SILENT_S - 10) // 5,
    "tcp_user_timeout": SILENT_S * 1_000,
}
"""libpq's parameters for that."""
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
    def purged(self) -> str:
        return PURGED + LOCKED if self.shares_snapshot else PURGED

    @property
    def prepares(self) -> str:
        """What makes the statements of a single claim known to a connection; empty where they do not stay."""
        if self.is_pooled:
            return ""
        return (
            "PREPARE keylane_claim (text, int, bigint, text, bigint, bigint) AS "
            f"{CLAIM.format(rows='($1, $2, $3, $4, $5, $6)')}; "
            f"PREPARE keylane_purged (text, int) AS {self.purged.format(partitions='($1, $2)')}"
        )

    @property
    def begin(self) -> tuple[str, ...]:
        """What every transaction begins with."""
        if not self.is_pooled:
            return ("BEGIN",)
        return "BEGIN", f"SET LOCAL idle_in_transaction_session_timeout = {self.idle_timeout_ms}"


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

        def configure(connection: Any) -> None:
            connection.execute(server.prepares)

        pool = pools.ConnectionPool(_checked(self.conninfo), configure=configure, **self._pooling(server))
        pool.open()
        return OpenPostgres(pool, server)

    async def open_async(self) -> AsyncPostgres:
        psycopg, pools = _imported()
        server = self._prepared(psycopg)  # once, at the start: nothing runs on the loop yet

        async def configure(connection: Any) -> None:
            await connection.execute(server.prepares)

        pool = pools.AsyncConnectionPool(_checked(self.conninfo), configure=configure, **self._pooling(server))
        await pool.open()
        return AsyncPostgres(pool, server)

    def _pooling(self, server: Server) -> dict[str, Any]:
        return {
            "min_size": 1,
            "max_size": self.connections,
            "timeout": self.timeout_ms / 1000,
            "open": False,
            "kwargs": server.settings | {"autocommit": True},  # BEGIN is ours: it goes with the claims
        }

    def _prepared(self, psycopg: Any) -> Server:
        """Learn what the server takes, and make what is missing in it."""
        given = _given_options(psycopg, _checked(self.conninfo))
        ours = f"-c idle_in_transaction_session_timeout={self.idle_timeout_ms}"
        settings: dict[str, Any] = {"options": f"{given} {ours}".strip()}
        patience = _patience(psycopg, self.conninfo)
        try:
            connection = psycopg.connect(self.conninfo, **settings, **patience)
        except psycopg.OperationalError as error:
            if "startup parameter" not in str(error):
                raise
            _check_pooler(given)
            settings = {}
            connection = psycopg.connect(self.conninfo, **patience)
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
        return Server(settings | patience, is_pooled, isolation != "read committed", self.idle_timeout_ms)


class PostgresTransaction(Housekeeping):
    """A transaction on a connection of the pool."""

    lock = " FOR UPDATE"

    def __init__(self, connection: Any, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._to_begin = server.begin
        self._kept: list[tuple[Any, ...]] = []
        """Outputs, for the end: many travel at once, with COMMIT."""

    @property
    def connection(self) -> Any:
        if self._to_begin:
            self._connection.execute("; ".join(self._to_begin))
            self._to_begin = ()
        return self._connection

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        rows: Rows = self.connection.execute(statement, parameters)
        return rows

    def is_open(self) -> bool:
        return _is_open(self._connection)

    def count_keys(self, scope: str, keys: Collection[str]) -> int:
        count = f"SELECT count(*) FROM keylane_processed {OF_PARTITION} AND at = -1 AND key = ANY(%s)"
        return int(self.run(count, (scope, -1, list(keys))).fetchone()[0])

    def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        claim = Claim(checksums, self._connection, self._server)
        execute, begin, self._to_begin = self._connection.execute, self._to_begin, ()
        cursor = execute("; ".join((*begin, *claim.statements)), prepare=False)
        for _ in begin:
            cursor.nextset()
        processed: dict[Identity, Processed] = {}
        if cursor.rowcount < len(checksums):
            claim.claimed(cursor.fetchall())
            processed |= claim.found(execute(claim.of_others(FOUND)).fetchall())
        if cursor.nextset() and (late := claim.late(cursor.fetchall())):
            execute(claim.of(FORGET, late))
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


class Words(dict[str, str]):
    """Texts, as psycopg quotes them for the server."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self[""] = "''"

    def __missing__(self, text: str) -> str:
        from psycopg.sql import quote

        self[text] = quoted = quote(text, self._connection)
        return quoted


class Claim:
    """Identities in SQL, with the answers to it. Statements that are sent as one text have no parameters: so the values
    are in them."""

    def __init__(self, checksums: Mapping[Identity, int | None], connection: Any, server: Server) -> None:
        now_ms = time.time_ns() // 1_000_000
        words = Words(connection)
        self._places: dict[Identity, str] = {}
        self._fresh: Collection[Identity] = checksums
        """Those that were inserted."""
        rows: list[str] = []
        partitions: dict[str, None] = {}
        for one, checksum in checksums.items():
            scope, partition, offset, key = one
            of_partition = f"{words[scope]}, {partition}"
            self._places[one] = place = f"{of_partition}, {offset}, {words[key]}"
            rows.append(f"({place}, {now_ms}, {'NULL' if checksum is None else checksum})")
            if offset >= 0:
                partitions[f"({of_partition})"] = None
        if len(rows) == 1 and server.prepares:
            self.statements = [f"EXECUTE keylane_claim {one}" for one in rows]
            self.statements += [f"EXECUTE keylane_purged {one}" for one in partitions]
        else:
            self.statements = [CLAIM.format(rows=", ".join(rows))]
            self.statements += [server.purged.format(partitions=", ".join(partitions))] if partitions else []

    def claimed(self, rows: list[Any]) -> None:
        self._fresh = {Identity(*row) for row in rows}

    def of(self, statement: str, identities: Iterable[Identity]) -> str:
        return statement.format(rows=", ".join(f"({self._places[one]})" for one in identities))

    def of_others(self, statement: str) -> str:
        return self.of(statement, (one for one in self._places if one not in self._fresh))

    def found(self, rows: list[Any]) -> dict[Identity, Processed]:
        return {Identity(*place): Processed(bytes(outputs or b""), checksum) for *place, outputs, checksum in rows}

    def late(self, rows: list[Any]) -> list[Identity]:
        """Of the fresh ones, those that others have processed so long ago that it is purged."""
        below = {(scope, partition): below for scope, partition, below in rows if below}
        return [one for one in self._fresh if 0 <= one.offset < below.get(one[:2], 0)] if below else []


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
            known = Claim(dict.fromkeys(identities), connection, self._server).of(KNOWN, identities)
            return [Identity(*row) for row in connection.execute(known).fetchall()]

    def close(self) -> None:
        self._pool.close()


class AsyncPostgresTransaction:
    """The same on an asyncio loop. It begins with the claims."""

    def __init__(self, connection: Any, server: Server) -> None:
        self.connection = connection
        self._server = server
        self._to_begin = server.begin
        self._kept: list[tuple[Any, ...]] = []

    def is_open(self) -> bool:
        return _is_open(self.connection)

    async def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        task = asyncio.current_task()
        claim = Claim(checksums, self.connection, self._server)
        execute, begin, self._to_begin = self.connection.execute, self._to_begin, ()
        cursor = await execute("; ".join((*begin, *claim.statements)), prepare=False)
        for _ in begin:
            cursor.nextset()
        processed: dict[Identity, Processed] = {}
        if cursor.rowcount < len(checksums):
            claim.claimed(await cursor.fetchall())
            processed |= claim.found(await (await execute(claim.of_others(FOUND))).fetchall())
        if cursor.nextset() and (late := claim.late(await cursor.fetchall())):
            await execute(claim.of(FORGET, late))
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
            known = Claim(dict.fromkeys(identities), connection, self._server).of(KNOWN, identities)
            return [Identity(*row) for row in await (await connection.execute(known)).fetchall()]

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


def _patience(psycopg: Any, conninfo: str) -> dict[str, Any]:
    """Of `PATIENCE`, what the user does not set: in the address, the service of PGSERVICE, or the environment."""
    given = set(psycopg.conninfo.conninfo_to_dict(conninfo))
    given |= {one.keyword.decode() for one in psycopg.pq.Conninfo.get_defaults() if one.val is not None}
    return {name: value for name, value in PATIENCE.items() if name not in given}


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
        for statement in schema_of("postgresql"):  # one table at a time: a member that runs may hold any two
            connection.execute(LOCK)
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
