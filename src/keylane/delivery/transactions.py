"""`Transactions`: a function whose effects, and what its items are known by, are in one transaction of a store.

The idea: the function is wrapped. Its transaction begins when it first uses `context.transaction`, so that a slow call
before that holds no connection, and the item's identity is claimed in it before anything else; of what was claimed by
an earlier transaction only what was kept then is given again. So a crash anywhere leaves either both or neither. What
items are known by, and what is kept of them, says a `Keeping`: of a pipeline's records
(`keylane.delivery.exactly_once`), or of a DataFrame's rows (`keylane.spark`).
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from keylane.delivery.postgres import PostgresStore
from keylane.delivery.sqlite import BusyNowError, SqliteStore
from keylane.delivery.stores import AsyncStore, Identity, Processed, Store
from keylane.errors import HandlerError, PeerError, StoreError, UsageError
from keylane.flow.around import handler_of
from keylane.flow.outcomes import Failure
from keylane.foreign_errors import line_of
from keylane.options import ExactlyOnce, takes_context
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from keylane.delivery.stores import AsyncTransaction, OpenAsyncStore, OpenStore, Transaction
    from keylane.flow.outcomes import Outcome
    from keylane.options import Flow
    from keylane.records import Context

    Handler = Callable[..., Any]

METHODS = (
    "claim_all",
    "count_keys",
    "count_places",
    "has_unchecked",
    "is_open",
    "keep_all",
    "note_position",
    "places",
    "position",
    "purge",
    "purge_before",
    "purged_below",
    "scopes",
)
"""What every transaction of a store has."""

REPEATS = 10
"""How often a call is made in a row whose transaction could not be serialized with another one's."""
REPEAT_S = 0.01
"""Before the first of them, at most; twice as long before each other one."""
BUSY_TRIES = 3
"""How often a coroutine is run that finds another transaction open when it wants its own; then it begins with it."""
NOT_SERIALIZED = ("40001", "40P01")
"""SQLSTATE: could not be serialized; a deadlock."""


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

    def checksum_of(self, item: Any) -> int | None:
        """What tells the item from another one at the same place."""

    def is_known(self, identity: Identity) -> bool | None:
        """Whether it was processed, as of the assignment and by this process since then; None: the store knows."""

    def processed(self, identities: Sequence[Identity]) -> None:
        """These are processed now: their transaction is committed."""

    def outcome(self, result: Outcome) -> tuple[Outcome, bytes]:
        """What the function returned, once it is sure that it can be committed, and what is kept with the identity;
        empty for nothing. Raises for what cannot."""

    def outcomes(self, result: Outcome, count: int) -> Sequence[tuple[Outcome, bytes]]:
        """The same of a call for so many items, one each; a `Failure` for one that failed."""

    def again(self, processed: Processed) -> Outcome:
        """What stands for a call that is not made again. Raises when there is nothing that could."""


class ClaimLost(BaseException):
    """Somebody else has processed the item since the function began with it: no effect of this call may follow. It is
    no `Exception`, as the function is not to catch it."""


class Transactions:
    """`handler` and `resource` are those of the flow to run. Thread safety: they run in workers."""

    def __init__(self, flow: Flow, keeping: Keeping) -> None:
        self.store = checked_store(flow)
        self._user_resource = flow.resource
        self.resource = self._async_resource if flow.is_async else self._resource
        handler = handler_of(flow)
        takes = takes_context(handler)
        kind = _AsyncCalls if flow.is_async else _Calls
        calls = kind(self, keeping, lambda what, context: handler(what, context) if takes else handler(what))
        self.handler: Handler = calls.of_batch if flow.batch is not None else calls.of_one
        self.opened: OpenStore
        self.opened_async: OpenAsyncStore
        self._waiting: set[_Batch] = set()

    @contextmanager
    def waiting(self, batch: _Batch) -> Iterator[None]:
        """While a call waits for a connection."""
        self._waiting.add(batch)
        try:
            yield
        finally:
            self._waiting.discard(batch)

    def items_that_wait(self) -> list[Any]:
        """Those of calls that wait for a connection."""
        return [item for batch in self._waiting.copy() for item in batch.items]

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
        (outcome,) = self.of_batch([item], context, _One)
        return outcome

    def of_batch(self, items: Sequence[Any], context: Context, kind: type[_Batch] | None = None) -> list[Outcome]:
        for repeat in range(REPEATS):
            batch = (kind or _Batch)(items, self._keeping)
            try:
                return self._run(batch, context)
            except Exception as error:
                if not _may_be_repeated(error) or repeat == REPEATS - 1:
                    raise
            time.sleep(_pause_s(repeat))
        raise AssertionError("a repeat returns, or raises")

    def _run(self, batch: _Batch, context: Context) -> list[Outcome]:
        known = [batch.is_known(one) for one in batch.identities]
        if None in known:
            known = [bool(self._transactions.opened.find(batch.identities))]
        if not any(known):
            try:
                return self._attempt(batch, context, claims_first=False)
            except ClaimLost:
                batch.begin_anew()
        return self._attempt(batch, context, claims_first=True)

    def _attempt(self, batch: _Batch, context: Context, *, claims_first: bool) -> list[Outcome]:
        with ExitStack() as stack:
            begun = _Begun(self._transactions, batch, stack)
            if claims_first:
                batch.leave_out(begun.begin())
            if batch.fresh:
                context.begin_with(begun.connection)
                try:
                    result = self._handler(batch.argument, context)
                finally:
                    context.begin_with(None)
                results = batch.results(result)
                batch.leave_out(begun.begin())
                _check_open(begun.transaction)
                if kept := batch.to_keep(results):
                    begun.transaction.keep_all(kept)
        batch.committed()
        return batch.outcomes


class _Begun:
    """The transaction of one call, once it has begun."""

    def __init__(self, transactions: Transactions, batch: _Batch, stack: ExitStack) -> None:
        self._transactions = transactions
        self._batch = batch
        self._stack = stack
        self._processed: Mapping[Identity, Processed] | None = None
        self.transaction: Transaction

    def begin(self) -> Mapping[Identity, Processed]:
        """What others have processed of the call's items; all others are claimed."""
        if self._processed is None:
            with self._transactions.waiting(self._batch):
                self.transaction = self._stack.enter_context(self._transactions.opened.transaction())
                self._processed = self._batch.checked(self.transaction.claim_all(self._batch.checksums))
        return self._processed

    def connection(self) -> Any:
        """`context.transaction`. Raises `ClaimLost`."""
        self._batch.check_claims(self.begin())
        return self.transaction.connection


class _AsyncCalls:
    """For coroutine functions."""

    def __init__(self, transactions: Transactions, keeping: Keeping, handler: Handler) -> None:
        self._transactions = transactions
        self._keeping = keeping
        self._handler = handler

    async def of_one(self, item: Any, context: Context) -> Outcome:
        (outcome,) = await self.of_batch([item], context, _One)
        return outcome

    async def of_batch(self, items: Sequence[Any], context: Context, kind: type[_Batch] | None = None) -> list[Outcome]:
        for repeat in range(REPEATS):
            batch = (kind or _Batch)(items, self._keeping)
            try:
                return await self._run(batch, context)
            except Exception as error:
                if not _may_be_repeated(error) or repeat == REPEATS - 1:
                    raise
            await asyncio.sleep(_pause_s(repeat))
        raise AssertionError("a repeat returns, or raises")

    async def _run(self, batch: _Batch, context: Context) -> list[Outcome]:
        opened = self._transactions.opened_async
        known = [batch.is_known(one) for one in batch.identities]
        if None in known:
            known = [bool(await opened.find(batch.identities))]
        opened_now: Any = opened
        for _ in range(0 if any(known) else BUSY_TRIES):
            if not hasattr(opened, "deferred") and (not hasattr(opened, "begin_now") or opened_now.is_held):
                break
            try:
                return await self._attempt(batch, context, claims_first=False)
            except ClaimLost:
                batch.begin_anew()
                break
            except BusyNowError:
                batch.begin_anew()
                await opened_now.wait_until_free()
        return await self._attempt(batch, context, claims_first=True)

    async def _attempt(self, batch: _Batch, context: Context, *, claims_first: bool) -> list[Outcome]:
        async with AsyncExitStack() as stack:
            begun = _AsyncBegun(self._transactions, batch, stack)
            if claims_first:
                batch.leave_out(await begun.begin())
            if batch.fresh:
                context.begin_with(begun.connection)
                try:
                    result = await self._handler(batch.argument, context)
                finally:
                    context.begin_with(None)
                begun.check()
                results = batch.results(result)
                batch.leave_out(await begun.begin())
                _check_open(begun.transaction)
                if kept := batch.to_keep(results):
                    await begun.transaction.keep_all(kept)
        batch.committed()
        return batch.outcomes


class _AsyncBegun:
    """The same on an asyncio loop."""

    def __init__(self, transactions: Transactions, batch: _Batch, stack: AsyncExitStack) -> None:
        self._transactions = transactions
        self._batch = batch
        self._stack = stack
        self._processed: Mapping[Identity, Processed] | None = None
        self._beginning = asyncio.Lock()
        self._is_busy = False
        self.transaction: AsyncTransaction

    async def begin(self) -> Mapping[Identity, Processed]:
        async with self._beginning:  # statements of one handler may run beside each other
            if self._processed is None:
                with self._transactions.waiting(self._batch):
                    transaction = self._transactions.opened_async.transaction()
                    self.transaction = await self._stack.enter_async_context(transaction)
                    self._processed = self._batch.checked(await self.transaction.claim_all(self._batch.checksums))
        return self._processed

    def connection(self) -> Any:
        """`context.transaction`: what begins the transaction when it is used, where the store has that, or of one
        that has begun. Raises `ClaimLost`, and `BusyNowError` where one would have to wait for it."""
        opened: Any = self._transactions.opened_async
        if self._processed is None and hasattr(opened, "deferred"):
            return opened.deferred(self._begin_for_handler)
        if self._processed is None:
            try:
                self.transaction, processed = opened.begin_now(self._stack, self._batch.checksums)
            except BusyNowError:
                self._is_busy = True
                raise
            self._processed = self._batch.checked(processed)
        self._batch.check_claims(self._processed)
        return self.transaction.connection

    def check(self) -> None:
        """The handler has returned. Raises `BusyNowError` where it went on without its transaction."""
        if self._is_busy:
            raise BusyNowError

    async def _begin_for_handler(self) -> Any:
        self._batch.check_claims(await self.begin())
        return self.transaction.connection


class _Batch:
    """Items of one call, in one transaction. Of those with one identity the first is called, for all of them."""

    def __init__(self, items: Sequence[Any], keeping: Keeping) -> None:
        self.items = items
        self._keeping = keeping
        try:
            self._identities = [keeping.identity_of(item) for item in items]
        except UsageError as error:
            if len(items) == 1:
                raise
            raise HandlerError(f"with an item of its batch that is known by nothing: {error}") from error
        self.is_known = keeping.is_known
        self._first = {identity: index for index, identity in reversed([*enumerate(self._identities)])}
        self.checksums = {one: keeping.checksum_of(items[self._first[one]]) for one in sorted(self._first)}
        """In their order, so that two transactions that claim the same ones do not wait for each other."""
        self.begin_anew()

    def begin_anew(self) -> None:
        self._made: dict[Identity, Outcome] = {}
        self._called: list[int] = []
        self._is_lost = False
        self.fresh = sorted(self._first.values())
        """Which were not processed before, in their order."""

    @property
    def identities(self) -> list[Identity]:
        """Each once."""
        return list(self.checksums)

    def checked(self, processed: Mapping[Identity, Processed]) -> Mapping[Identity, Processed]:
        """Raises `StoreError` where another record was processed at one's place."""
        for identity, found in processed.items():
            given = self.checksums[identity]
            if given is not None and found.checksum is not None and given != found.checksum:
                raise StoreError(
                    f"the store has processed another record at partition {identity.partition}, offset "
                    f"{identity.offset}: the log was cut, restored or copied since then, or is another cluster's: "
                    "`keylane store check` says which records of this log the store has, and `keylane store forget` "
                    "makes exactly the others run"
                )
        return processed

    def check_claims(self, processed: Mapping[Identity, Processed]) -> None:
        """The function wants its transaction. Raises `ClaimLost` when an item that it was given is another's."""
        self._is_lost = any(self._first[one] in self.fresh for one in processed)
        if self._is_lost:
            raise ClaimLost

    def leave_out(self, processed: Mapping[Identity, Processed]) -> None:
        """These were processed before: what was kept of them stands for their calls."""
        for identity, found in processed.items():
            if self._first[identity] in self.fresh:
                self._made[identity] = self._keeping.again(found)
                self.fresh.remove(self._first[identity])

    @property
    def argument(self) -> Any:
        """What the function gets."""
        self._called = list(self.fresh)
        return [self.items[index] for index in self._called]

    def results(self, result: Outcome) -> list[tuple[Outcome, bytes]]:
        """What the call came to for each of its items. One that fails takes the transaction along, and so the others of
        its batch: they are tried again each alone. Raises `ClaimLost` for a function that went on without its items.
        """
        if self._is_lost:
            raise ClaimLost
        outcomes = list(self._keeping.outcomes(result, len(self._called)))
        if failed := next((one for one, _ in outcomes if isinstance(one, Failure)), None):
            if len(self.items) == 1 or all(isinstance(one, Failure) for one, _ in outcomes):
                raise failed.error
            raise HandlerError(f"rolled back with its batch: {failed.error}") from failed.error
        return outcomes

    def to_keep(self, results: list[tuple[Outcome, bytes]]) -> dict[Identity, bytes]:
        """What to keep of those that are still this call's."""
        kept: dict[Identity, bytes] = {}
        for index, (outcome, data) in zip(self._called, results, strict=True):
            identity = self._identities[index]
            if identity not in self._made:
                self._made[identity] = outcome
                if data:
                    kept[identity] = data
        return kept

    def committed(self) -> None:
        self._keeping.processed(self.identities)

    @property
    def outcomes(self) -> list[Outcome]:
        """One each."""
        return [self._made[identity] for identity in self._identities]


class _One(_Batch):
    """A single item."""

    @property
    def argument(self) -> Any:
        self._called = [0]
        return self.items[0]

    def results(self, result: Outcome) -> list[tuple[Outcome, bytes]]:
        if self._is_lost:
            raise ClaimLost
        return [self._keeping.outcome(result)]


def _may_be_repeated(error: BaseException) -> bool:
    return getattr(error, "sqlstate", None) in NOT_SERIALIZED


def _pause_s(repeat: int) -> float:
    """Of chance, so that two calls do not meet again."""
    return random.uniform(0, REPEAT_S * 2**repeat)


def _check_open(transaction: Any) -> None:
    if not transaction.is_open():
        raise UsageError(
            "the handler ended context.transaction, or went on after an error in it: leave commit and rollback to "
            "keylane, and let errors of the database out"
        )
