"""The open `PostgresStore`: pools of connections, and the transactions on them.

The idea: a transaction begins with its claims (`keylane.delivery.claims`), which are one round trip; whatever else it
does is psycopg's, as is what the handler does in it.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

from keylane.delivery.claims import Claim, answers, has_pipeline
from keylane.delivery.deferred import DeferredConnection
from keylane.delivery.statements import OF_ONE, OF_PARTITION, Housekeeping, Rows
from keylane.delivery.stores import Identity, Processed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from keylane.delivery.claims import Command, Server

OF_SOME = "unnest(%s::text[], %s::int[], %s::bigint[], %s::text[]) AS given (scope, part, at, key)"
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


class PostgresTransaction(Housekeeping):
    """A transaction on a connection of the pool, while its block runs."""

    lock = " FOR UPDATE"

    def __init__(self, pool: Any, server: Server) -> None:
        self._pool = pool
        self._server = server
        self._has_begun = False
        self._kept: list[tuple[Any, ...]] = []
        """Outputs, for the end: many travel at once, with COMMIT."""

    def __enter__(self) -> Self:
        self._connection = self._pool.getconn()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: Any) -> None:
        try:
            if kind is not None:
                self._connection.__exit__(kind, *exception)  # which rolls back
                return
            with self._connection:  # which commits
                self._end()
        finally:
            self._pool.putconn(self._connection)

    @property
    def connection(self) -> Any:
        if not self._has_begun:
            self._begin_with(())
        return self._connection

    def _begin_with(self, commands: Iterable[Command]) -> list[Any]:
        """Begin the transaction with these, and return their results."""
        begin = [] if self._has_begun else self._server.begin
        self._has_begun = True
        with self._connection.lock:
            answered = answers(self._connection, self._server, [*begin, *commands])
            results: list[Any] = self._connection.wait(answered)
        return results[len(begin) :]

    def run(self, statement: str, parameters: Sequence[Any] = ()) -> Rows:
        rows: Rows = self.connection.execute(statement, parameters)
        return rows

    def is_open(self) -> bool:
        return _is_open(self._connection)

    def count_keys(self, scope: str, keys: Collection[str]) -> int:
        count = f"SELECT count(*) FROM keylane_processed {OF_PARTITION} AND at = -1 AND key = ANY(%s)"
        return int(self.run(count, (scope, -1, list(keys))).fetchone()[0])

    def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        claim = Claim(checksums, self._connection.info.encoding)
        claimed, *marks = self._begin_with(claim.commands)
        execute = self._connection.execute
        processed: dict[Identity, Processed] = {}
        if others := claim.others(claimed):
            processed |= _found(execute(FOUND, _columns(others)).fetchall())
        if marks and (late := claim.late(*marks)):
            execute(FORGET, _columns(late))
            processed |= dict.fromkeys(late, Processed())
        return processed

    def keep_all(self, outputs: Mapping[Identity, bytes]) -> None:
        self._kept += [(kept, *identity) for identity, kept in outputs.items()]

    def _end(self) -> None:
        if self._kept:
            with _together(self.connection, len(self._kept)):
                for parameters in self._kept:
                    self.connection.execute(KEEP, parameters)
                self.connection.execute("COMMIT")


class OpenPostgres:
    """A pool for threads."""

    def __init__(self, pool: Any, server: Server) -> None:
        self._pool = pool
        self._server = server

    def transaction(self) -> PostgresTransaction:
        return PostgresTransaction(self._pool, self._server)

    def find(self, identities: Collection[Identity]) -> Collection[Identity]:
        with self._pool.connection() as connection:
            return [Identity(*row) for row in connection.execute(KNOWN, _columns(identities)).fetchall()]

    def close(self) -> None:
        self._pool.close()


class AsyncPostgresTransaction:
    """The same on an asyncio loop. It begins with the claims."""

    def __init__(self, pool: Any, server: Server) -> None:
        self._pool = pool
        self._server = server
        self._kept: list[tuple[Any, ...]] = []
        self.connection: Any

    async def __aenter__(self) -> Self:
        self.connection = await self._pool.getconn()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: Any) -> None:
        try:
            if kind is not None:
                await self.connection.__aexit__(kind, *exception)
                return
            async with self.connection:
                await self._end()
        finally:
            await self._pool.putconn(self.connection)

    def is_open(self) -> bool:
        return _is_open(self.connection)

    async def claim_all(self, checksums: Mapping[Identity, int | None]) -> Mapping[Identity, Processed]:
        task = asyncio.current_task()
        claim = Claim(checksums, self.connection.info.encoding)
        begin = self._server.begin
        async with self.connection.lock:
            answered = answers(self.connection, self._server, [*begin, *claim.commands])
            claimed, *marks = (await self.connection.wait(answered))[len(begin) :]
        execute = self.connection.execute
        processed: dict[Identity, Processed] = {}
        if others := claim.others(claimed):
            processed |= _found(await (await execute(FOUND, _columns(others))).fetchall())
        if marks and (late := claim.late(*marks)):
            await execute(FORGET, _columns(late))
            processed |= dict.fromkeys(late, Processed())
        if task is not None and task.cancelling():  # asyncio.wait_for of Python 3.11 may lose a cancellation
            raise asyncio.CancelledError
        return processed

    async def keep_all(self, outputs: Mapping[Identity, bytes]) -> None:
        self._kept += [(kept, *identity) for identity, kept in outputs.items()]

    async def _end(self) -> None:
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

    def transaction(self) -> AsyncPostgresTransaction:
        return AsyncPostgresTransaction(self._pool, self._server)

    def deferred(self, begin: Callable[[], Awaitable[Any]]) -> DeferredConnection:
        """What a handler gets whose transaction has not begun."""
        return DeferredConnection(begin)

    async def find(self, identities: Collection[Identity]) -> Collection[Identity]:
        async with self._pool.connection() as connection:
            known = await connection.execute(KNOWN, _columns(identities))
            return [Identity(*row) for row in await known.fetchall()]

    async def close(self) -> None:
        await self._pool.close()


def _columns(identities: Iterable[Identity]) -> list[list[Any]]:
    """What stands for `OF_SOME`."""
    return [list(column) for column in zip(*identities, strict=True)]


def _found(rows: Iterable[Any]) -> dict[Identity, Processed]:
    return {Identity(*place): Processed(bytes(outputs or b""), checksum) for *place, outputs, checksum in rows}


def _together(connection: Any, statements: int) -> Any:
    """What is executed in it goes to the server at once, where libpq can do that. For few statements it costs more time
    than it saves."""
    return connection.pipeline() if statements > MANY and has_pipeline() else nullcontext()


def _is_open(connection: Any) -> bool:
    return int(connection.info.transaction_status) == IN_TRANSACTION
