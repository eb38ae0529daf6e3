"""`PostgresStore`: processing details in PostgreSQL, beside the handler's own tables (psycopg 3, with its pool).

The idea: the primary key decides. Two transactions that claim one identity meet in the index: the second waits for the
end of the first, and then finds its row, or takes its place. The offset below which identities were purged is read
after the claim, with a snapshot of its own, so that a purge in between is seen. BEGIN, the claim and that look travel
together (`keylane.delivery.claims`), so that they are one round trip. That is why connections are in autocommit, where
psycopg begins nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keylane.delivery.statements import PROBES, schema_of
from keylane.errors import PeerError, UsageError

if TYPE_CHECKING:
    from keylane.delivery.claims import Server
    from keylane.delivery.pools import AsyncPostgres, OpenPostgres

LOCK = "SELECT pg_advisory_xact_lock(7205011)"
"""Keeps others from making the same tables at once."""
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
        from keylane.delivery.pools import OpenPostgres

        def configure(connection: Any) -> None:
            connection.wait(server.prepare(connection))

        pool = pools.ConnectionPool(_checked(self.conninfo), configure=configure, **self._pooling(server))
        pool.open()
        return OpenPostgres(pool, server)

    async def open_async(self) -> AsyncPostgres:
        psycopg, pools = _imported()
        server = self._prepared(psycopg)  # once, at the start: nothing runs on the loop yet
        from keylane.delivery.pools import AsyncPostgres

        async def configure(connection: Any) -> None:
            await connection.wait(server.prepare(connection))

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
        from keylane.delivery.claims import Server  # which needs psycopg

        return Server(settings | patience, is_pooled, isolation != "read committed", self.idle_timeout_ms)


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
