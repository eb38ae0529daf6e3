"""`DeferredConnection`: psycopg's `AsyncConnection` of a transaction that begins with its first statement.

The idea: a coroutine gets `context.transaction` without waiting, and all that psycopg does with it is awaited anyway.
So the first that is awaited begins the transaction, and what is no coroutine is the connection's own from then on.
"""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection, AsyncCursor

from keylane.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator


class DeferredConnection:
    """`await` it for the connection itself, with the transaction begun."""

    def __init__(self, begin: Callable[[], Awaitable[Any]]) -> None:
        self._begin = begin
        self._connection: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._begun().__await__()

    async def _begun(self) -> Any:
        self._connection = await self._begin()
        return self._connection

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        if self._connection is not None:
            return self._connection.cursor(*arguments, **options)
        return _DeferredCursor(self._begun, arguments, options)

    def transaction(self, *arguments: Any, **options: Any) -> Any:
        return self._entered("transaction", *arguments, **options)

    def pipeline(self) -> Any:
        return self._entered("pipeline")

    @asynccontextmanager
    async def _entered(self, name: str, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async with getattr(await self._begun(), name)(*arguments, **options) as value:
            yield value

    def __getattr__(self, name: str) -> Any:
        if self._connection is not None:
            return getattr(self._connection, name)
        return _deferred(AsyncConnection, name, self._begun, "context.transaction")


class _DeferredCursor:
    """A cursor of it."""

    def __init__(
        self, begin: Callable[[], Awaitable[Any]], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self._begin = begin
        self._arguments = arguments
        self._options = options
        self._cursor: Any = None

    async def _begun(self) -> Any:
        if self._cursor is None:
            self._cursor = (await self._begin()).cursor(*self._arguments, **self._options)
        return self._cursor

    async def __aenter__(self) -> Any:
        return await (await self._begun()).__aenter__()

    async def __aexit__(self, *exception: Any) -> None:
        await self._cursor.__aexit__(*exception)

    def __aiter__(self) -> Any:
        return self._of_begun("__aiter__")()

    def __getattr__(self, name: str) -> Any:
        return self._of_begun(name)

    def _of_begun(self, name: str) -> Any:
        if self._cursor is not None:
            return getattr(self._cursor, name)
        return _deferred(AsyncCursor, name, self._begun, "a cursor of context.transaction")


def _deferred(kind: type, name: str, begin: Callable[[], Awaitable[Any]], what: str) -> Any:
    """A coroutine function that begins first. Raises `UsageError` for what cannot wait for that."""
    if not inspect.iscoroutinefunction(getattr(kind, name)):
        raise UsageError(
            f"{what} has no {name} before its first statement, with which the transaction begins: "
            "`connection = await context.transaction` begins it at once"
        )

    async def call(*arguments: Any, **options: Any) -> Any:
        return await getattr(await begin(), name)(*arguments, **options)

    return call
