"""`Transactions`: a function whose effects, and what its items are known by, are in one transaction of a store.

The idea: the function is wrapped. A transaction begins, the item's identity is claimed in it, and the function gets it
open; of what was claimed by an earlier transaction only what was kept then is given again. So a crash anywhere leaves
either both or neither. What items are known by, and what is kept of them, says a `Keeping`: of a pipeline's records
(`keylane.delivery.exactly_once`), or of a DataFrame's rows (`keylane.spark`).
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from keylane.delivery.postgres import PostgresStore
from keylane.delivery.sqlite import SqliteStore
from keylane.delivery.stores import AsyncStore, Identity, Processed, Store
from keylane.errors import HandlerError, PeerError, UsageError
from keylane.flow.outcomes import Failure
from keylane.foreign_errors import line_of
from keylane.options import ExactlyOnce, takes_context
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from keylane.delivery.stores import OpenAsyncStore, OpenStore, Transaction
    from keylane.flow.outcomes import Outcome
    from keylane.options import Flow
    from keylane.records import Context

    Handler = Callable[..., Any]

METHODS = ("claim", "is_open", "keep", "purge", "purge_before", "purged_below")
"""What every transaction of a store has."""


def store_of(store: Store | str) -> Store:
    """A store by its address: of PostgreSQL, or the path of a SQLite file."""
    if not isinstance(store, str):
        return store
    return PostgresStore(store) if store.startswith(("postgresql://", "postgres://")) else SqliteStore(store)


def once_of(flow: Flow) -> ExactlyOnce:
    """Its options."""
    assert isinstance(flow.delivery, ExactlyOnce), flow.delivery
    return flow.delivery


def checked_store(flow: Flow) -> Store:
    """Raises `UsageError` for a store that the flow's function cannot use."""
    store = store_of(once_of(flow).store)
    if flow.is_async and not isinstance(store, AsyncStore):
        raise UsageError(f"store: {type(store).__name__} has no open_async, which handlers that are coroutines need")
    return store


def unavailable(store: Store, error: BaseException) -> PeerError:
    """The store does not answer, or refuses."""
    return PeerError(f"{type(store).__name__} does not answer: {line_of(error)}")


@contextmanager
def answering(store: Store) -> Iterator[None]:
    """Raises `PeerError` for a store that does not answer."""
    try:
        yield
    except (UsageError, PeerError):
        raise
    except Exception as error:
        raise unavailable(store, error) from error


def check_transaction(store: Store, transaction: Transaction) -> None:
    """Raises `UsageError` for a store of one's own that lacks something."""
    if missing := [name for name in METHODS if not callable(getattr(transaction, name, None))]:
        raise UsageError(
            f"store: a transaction of {type(store).__name__} has no {', '.join(missing)}: keylane.delivery.stores says "
            "what a store has to do, and keylane.testing.StoreContract tests it"
        )


def key_of(key: object, item: str) -> str:
    """What an `identity` returned for an item, as it is kept. Raises `UsageError` for what is no key."""
    if isinstance(key, bytes | bytearray):
        key = key.hex()
    if not isinstance(key, str) or not key:
        shown = "an empty key" if isinstance(key, str) else kind_of(key)
        raise UsageError(f"identity returned {shown} for {item}: return a str or bytes that is not empty")
    return key


class Keeping(Protocol):
    """What items are known by, and what is kept of them. Thread safety: any thread."""

    def identity_of(self, item: Any) -> Identity: ...

    def outcome(self, result: Outcome) -> tuple[Outcome, bytes]:
        """What the function returned, once it is sure that it can be committed, and what is kept with the identity;
        empty for nothing. Raises for what cannot."""

    def outcomes(self, result: Outcome, count: int) -> Sequence[tuple[Outcome, bytes]]:
        """The same of a call for so many items, one each; a `Failure` for one that failed."""

    def again(self, processed: Processed) -> Outcome:
        """What stands for a call that is not made again. Raises when there is nothing that could."""


class Transactions:
    """`handler` and `resource` are those of the flow to run. Thread safety: they run in workers."""

    def __init__(self, flow: Flow, keeping: Keeping) -> None:
        self.store = checked_store(flow)
        self._user_resource = flow.resource
        self.resource = self._async_resource if flow.is_async else self._resource
        handler: Handler = flow.handler
        takes = takes_context(handler)
        kind = _AsyncCalls if flow.is_async else _Calls
        calls = kind(self, keeping, lambda what, context: handler(what, context) if takes else handler(what))
        self.handler: Handler = calls.of_batch if flow.batch is not None else calls.of_one
        self.opened: OpenStore
        self.opened_async: OpenAsyncStore

    @contextmanager
    def _resource(self) -> Iterator[Any]:
        """Of the worker threads: the user's, and the store's connections."""
        with answering(self.store):
            self.opened = self.store.open()
        try:
            if self._user_resource is None:
                yield None
            else:
                with self._user_resource() as value:
                    yield value
        finally:
            self.opened.close()

    @asynccontextmanager
    async def _async_resource(self) -> AsyncIterator[Any]:
        assert isinstance(self.store, AsyncStore)
        with answering(self.store):
            self.opened_async = await self.store.open_async()
        try:
            if self._user_resource is None:
                yield None
            else:
                made = self._user_resource()
                if hasattr(made, "__aenter__"):
                    async with made as value:
                        yield value
                else:
                    with made as value:
                        yield value
        finally:
            await self.opened_async.close()


class _Calls:
    """For functions."""

    def __init__(self, transactions: Transactions, keeping: Keeping, handler: Handler) -> None:
        self._transactions = transactions
        self._keeping = keeping
        self._handler = handler

    def of_one(self, item: Any, context: Context) -> Outcome:
        identity = self._keeping.identity_of(item)
        with self._transactions.opened.transaction() as transaction:
            processed = transaction.claim(identity)
            if processed is not None:
                return self._keeping.again(processed)
            outcome, kept = self._keeping.outcome(self._call(item, context, transaction))
            _check_open(transaction)
            if kept:
                transaction.keep(identity, kept)
            return outcome

    def of_batch(self, items: Sequence[Any], context: Context) -> list[Outcome]:
        batch = _Batch(items, self._keeping)
        with self._transactions.opened.transaction() as transaction:
            for identity in batch.to_claim:
                batch.claimed(identity, transaction.claim(identity))
            if batch.fresh:
                result = self._call(batch.fresh_items, context, transaction)
                for identity, kept in batch.results(result, transaction):
                    transaction.keep(identity, kept)
        return batch.outcomes

    def _call(self, what: Any, context: Context, transaction: Any) -> Any:
        context.transaction = transaction.connection
        try:
            return self._handler(what, context)
        finally:
            context.transaction = None


class _AsyncCalls:
    """For coroutine functions."""

    def __init__(self, transactions: Transactions, keeping: Keeping, handler: Handler) -> None:
        self._transactions = transactions
        self._keeping = keeping
        self._handler = handler

    async def of_one(self, item: Any, context: Context) -> Outcome:
        identity = self._keeping.identity_of(item)
        async with self._transactions.opened_async.transaction() as transaction:
            processed = await transaction.claim(identity)
            if processed is not None:
                return self._keeping.again(processed)
            outcome, kept = self._keeping.outcome(await self._call(item, context, transaction))
            _check_open(transaction)
            if kept:
                await transaction.keep(identity, kept)
            return outcome

    async def of_batch(self, items: Sequence[Any], context: Context) -> list[Outcome]:
        batch = _Batch(items, self._keeping)
        async with self._transactions.opened_async.transaction() as transaction:
            for identity in batch.to_claim:
                batch.claimed(identity, await transaction.claim(identity))
            if batch.fresh:
                result = await self._call(batch.fresh_items, context, transaction)
                for identity, kept in batch.results(result, transaction):
                    await transaction.keep(identity, kept)
        return batch.outcomes

    async def _call(self, what: Any, context: Context, transaction: Any) -> Any:
        context.transaction = transaction.connection
        try:
            return await self._handler(what, context)
        finally:
            context.transaction = None


class _Batch:
    """Items of one call, in one transaction. Of those with one identity the first is called, for all of them."""

    def __init__(self, items: Sequence[Any], keeping: Keeping) -> None:
        self._items = items
        self._keeping = keeping
        try:
            self._identities = [keeping.identity_of(item) for item in items]
        except UsageError as error:
            if len(items) == 1:
                raise
            raise HandlerError(f"with an item of its batch that is known by nothing: {error}") from error
        self._first = {identity: index for index, identity in reversed([*enumerate(self._identities)])}
        self._made: dict[Identity, Outcome] = {}
        self.fresh: list[int] = []
        """Which were not processed before, in their order."""

    @property
    def to_claim(self) -> list[Identity]:
        """In their order, so that two transactions that claim the same ones do not wait for each other."""
        return sorted(self._first)

    def claimed(self, identity: Identity, processed: Processed | None) -> None:
        if processed is None:
            self.fresh.append(self._first[identity])
            self.fresh.sort()
        else:
            self._made[identity] = self._keeping.again(processed)

    @property
    def fresh_items(self) -> list[Any]:
        return [self._items[index] for index in self.fresh]

    def results(self, result: Outcome, transaction: Any) -> list[tuple[Identity, bytes]]:
        """What to keep. One item that fails takes the transaction along, and so the others of its batch: they are
        tried again each alone."""
        outcomes = self._keeping.outcomes(result, len(self.fresh))
        if failed := next((one for one, _ in outcomes if isinstance(one, Failure)), None):
            if len(self._items) == 1 or all(isinstance(one, Failure) for one, _ in outcomes):
                raise failed.error
            raise HandlerError(f"rolled back with its batch: {failed.error}") from failed.error
        _check_open(transaction)
        identities = [self._identities[index] for index in self.fresh]
        self._made |= zip(identities, (outcome for outcome, _ in outcomes), strict=True)
        return [(identity, kept) for identity, (_, kept) in zip(identities, outcomes, strict=True) if kept]

    @property
    def outcomes(self) -> list[Outcome]:
        """One each."""
        return [self._made[identity] for identity in self._identities]


def _check_open(transaction: Any) -> None:
    if not transaction.is_open():
        raise UsageError(
            "the handler ended context.transaction, or went on after an error in it: leave commit and rollback to "
            "keylane, and let errors of the database out"
        )
