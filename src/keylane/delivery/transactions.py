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
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from keylane.delivery.postgres import PostgresStore
from keylane.delivery.sqlite import BusyNowError, SqliteStore, UndoneError
from keylane.delivery.step_calls import with_steps
from keylane.delivery.stored_steps import StoredSteps
from keylane.delivery.stores import AsyncStore, Identity, Processed, Store
from keylane.errors import HandlerError, PeerError, StoreError, UsageError
from keylane.flow.around import handler_of
from keylane.flow.outcomes import Failure
from keylane.foreign_errors import is_throttled, line_of
from keylane.options import ExactlyOnce, takes_context
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

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

    def processed(self, identities: Collection[Identity]) -> None:
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

    def __init__(self, flow: Flow, keeping: Keeping, steps_of: str | None = None) -> None:
        """`steps_of`: whose steps the store keeps, as idempotency keys name it; None where the flow has none."""
        self.store = checked_store(flow)
        self._user_resource = flow.resource
        self.resource = self._async_resource if flow.is_async else self._resource
        self.steps = None if steps_of is None else StoredSteps(self.store, keeping, steps_of, ClaimLost)
        if self.steps is not None:
            flow = replace(flow, handler=with_steps(self.steps, flow.handler))
        handler = handler_of(flow)
        takes = takes_context(handler)
        kind = _AsyncCalls if flow.is_async else _Calls
        calls = kind(self, keeping, lambda what, context: handler(what, context) if takes else handler(what))
        self.handler: Handler = calls.of_batch if flow.batch is not None else calls.of_one
        self.opened: OpenStore
        self.opened_async: OpenAsyncStore
        self.waiting: set[_Batch] = set()
        """Calls that wait for a connection."""

    def items_that_wait(self) -> list[Any]:
        """Those of calls that wait for a connection."""
        return [item for batch in self.waiting.copy() for item in batch.items]

    @contextmanager
    def _resource(self) -> Iterator[Any]:
        """Of the worker threads: the user's, and the store's connections."""
        with ExitStack() as stack:
            with answering(self.store):
                self.opened = self.store.open()
                stack.callback(self.opened.close)
                self._open_steps(stack, is_async=False)
            yield None if self._user_resource is None else stack.enter_context(self._user_resource())

    @asynccontextmanager
    async def _async_resource(self) -> AsyncIterator[Any]:
        assert isinstance(self.store, AsyncStore)
        async with AsyncExitStack() as stack:
            with answering(self.store):
                self.opened_async = await self.store.open_async()
                stack.push_async_callback(self.opened_async.close)
                self._open_steps(stack, is_async=True)
            made = nullcontext() if self._user_resource is None else self._user_resource()
            if hasattr(made, "__aenter__"):
                yield await stack.enter_async_context(made)
            else:
                yield stack.enter_context(made)

    def _open_steps(self, stack: ExitStack | AsyncExitStack, *, is_async: bool) -> None:
        if self.steps is not None:
            stack.enter_context(self.steps.open(is_async=is_async))


class _Calls:
    """For functions."""

    def __init__(self, transactions: Transactions, keeping: Keeping, handler: Handler) -> None:
        self._transactions = transactions
        self._keeping = keeping
        self._handler = handler

    def of_one(self, item: Any, context: Context) -> Outcome:
        (outcome,) = self._outcomes(_One(item, self._keeping), context)
        return outcome

    def of_batch(self, items: Sequence[Any], context: Context) -> list[Outcome]:
        return self._outcomes(_Batch(items, self._keeping), context)

    def _outcomes(self, batch: _Batch, context: Context) -> list[Outcome]:
        repeat = 0
        claims_first = batch.is_known
        if claims_first is None:
            claims_first = bool(self._transactions.opened.find(batch.checksums))
        while True:
            try:
                return self._attempt(batch, context, claims_first=claims_first)
            except ClaimLost:
                claims_first = True
            except Exception as error:
                repeat += 1
                if not _may_be_repeated(error) or repeat == REPEATS:
                    raise
                time.sleep(_pause_s(repeat))
            batch.begin_anew()

    def _attempt(self, batch: _Batch, context: Context, *, claims_first: bool) -> list[Outcome]:
        with _Begun(self._transactions, batch, context) as begun:
            if claims_first:
                batch.leave_out(begun.begin())
            if batch.fresh:
                context.begin_with(begun.connection)
                try:
                    result = self._handler(batch.argument(), context)
                finally:
                    context.begin_with(None)
                results = batch.results(result)
                batch.leave_out(begun.begin())
                _check_open(begun.transaction)
                if kept := batch.to_keep(results):
                    begun.transaction.keep_all(kept)
        self._keeping.processed(batch.checksums)
        return batch.outcomes


class _Begun:
    """The transaction of one call, once it has begun: it ends with the block."""

    def __init__(self, transactions: Transactions, batch: _Batch, context: Context) -> None:
        self._transactions = transactions
        self._batch = batch
        self._context = context
        self._block: AbstractContextManager[Transaction] | None = None
        context.is_inside = False
        self._processed: Mapping[Identity, Processed] | None = None
        self.transaction: Transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> bool | None:
        return None if self._block is None else self._block.__exit__(*exception)

    def begin(self) -> Mapping[Identity, Processed]:
        """What others have processed of the call's items; all others are claimed."""
        if self._processed is None:
            self._context.is_inside = True
            self._transactions.waiting.add(self._batch)
            try:
                block = self._transactions.opened.transaction()
                self.transaction = block.__enter__()
                self._block = block
                self._processed = self._batch.checked(self.transaction.claim_all(self._batch.checksums))
            finally:
                self._transactions.waiting.discard(self._batch)
        return self._processed

    def connection(self) -> Any:
        """`context.transaction` when it is first used. Raises `ClaimLost`."""
        self._batch.check_claims(self.begin())
        return self._context.has_begun(self.transaction.connection)


class _AsyncCalls:
    """For coroutine functions."""

    def __init__(self, transactions: Transactions, keeping: Keeping, handler: Handler) -> None:
        self._transactions = transactions
        self._keeping = keeping
        self._handler = handler

    async def of_one(self, item: Any, context: Context) -> Outcome:
        (outcome,) = await self._outcomes(_One(item, self._keeping), context)
        return outcome

    async def of_batch(self, items: Sequence[Any], context: Context) -> list[Outcome]:
        return await self._outcomes(_Batch(items, self._keeping), context)

    async def _outcomes(self, batch: _Batch, context: Context) -> list[Outcome]:
        opened: Any = self._transactions.opened_async
        repeat = busy = 0
        claims_first = batch.is_known
        if claims_first is None:
            claims_first = bool(await opened.find(batch.checksums))
        while True:
            may_wait = hasattr(opened, "deferred") or getattr(opened, "may_begin_now", False)
            if (busy == BUSY_TRIES or not may_wait) and self._transactions.steps is None:  # these go first
                claims_first = True
            try:
                return await self._attempt(batch, context, claims_first=claims_first)
            except ClaimLost:
                claims_first = True
            except BusyNowError:
                busy += 1
                await opened.wait_until_free()
            except Exception as error:
                repeat += 1
                if not _may_be_repeated(error) or repeat == REPEATS:
                    raise
                await asyncio.sleep(_pause_s(repeat))
            batch.begin_anew()

    async def _attempt(self, batch: _Batch, context: Context, *, claims_first: bool) -> list[Outcome]:
        async with _AsyncBegun(self._transactions, batch, context) as begun:
            if claims_first:
                batch.leave_out(await begun.begin())
            if batch.fresh:
                context.begin_with(begun.connection)
                try:
                    result = await self._handler(batch.argument(), context)
                finally:
                    context.begin_with(None)
                begun.check()
                results = batch.results(result)
                batch.leave_out(await begun.begin())
                _check_open(begun.transaction)
                if kept := batch.to_keep(results):
                    await begun.transaction.keep_all(kept)
        self._keeping.processed(batch.checksums)
        return batch.outcomes


class _AsyncBegun:
    """The same on an asyncio loop."""

    def __init__(self, transactions: Transactions, batch: _Batch, context: Context) -> None:
        self._transactions = transactions
        self._batch = batch
        self._context = context
        self._block: AbstractAsyncContextManager[AsyncTransaction] | None = None
        context.is_inside = False
        self._processed: Mapping[Identity, Processed] | None = None
        self._beginning = asyncio.Lock()
        self._is_busy = False
        self.transaction: AsyncTransaction

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: Any) -> bool | None:
        return None if self._block is None else await self._block.__aexit__(*exception)

    async def begin(self) -> Mapping[Identity, Processed]:
        if self._processed is not None:
            return self._processed
        async with self._beginning:  # statements of one handler may run beside each other
            if self._processed is None:
                self._context.is_inside = True
                self._transactions.waiting.add(self._batch)
                try:
                    block = self._transactions.opened_async.transaction()
                    self.transaction = await block.__aenter__()
                    self._block = block
                    self._processed = self._batch.checked(await self.transaction.claim_all(self._batch.checksums))
                finally:
                    self._transactions.waiting.discard(self._batch)
        return self._processed

    def connection(self) -> Any:
        """`context.transaction`: what begins the transaction when it is used, where the store has that, or of one
        that has begun. Raises `ClaimLost`, and `BusyNowError` where one would have to wait for it."""
        opened: Any = self._transactions.opened_async
        if self._processed is None and hasattr(opened, "deferred"):
            return opened.deferred(self._begin_for_handler)
        if self._processed is None:
            try:
                self._block = self.transaction = begun = opened.begin_now()
            except BusyNowError:
                self._is_busy = True
                raise
            self._context.is_inside = True
            self._processed = self._batch.checked(begun.claim_now(self._batch.checksums))
        self._batch.check_claims(self._processed)
        return self._context.has_begun(self.transaction.connection)

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
        self._first: dict[Identity, int] = {}
        for index, identity in enumerate(self._identities):
            self._first.setdefault(identity, index)
        self.checksums = {one: keeping.checksum_of(items[self._first[one]]) for one in sorted(self._first)}
        """Of each identity, in their order, so that two transactions that claim the same ones do not wait for each
        other."""
        self.begin_anew()

    def begin_anew(self) -> None:
        self._made: dict[Identity, Outcome] = {}
        self._called: list[Identity] = []
        self._is_lost = False
        self.fresh = self._first.copy()
        """Which were not processed before, with their places among the items."""

    @property
    def is_known(self) -> bool | None:
        """Whether one was processed before; None: the store knows."""
        known = [self._keeping.is_known(one) for one in self.checksums]
        return None if None in known else True in known

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
        self._is_lost = not self.fresh.keys().isdisjoint(processed)
        if self._is_lost:
            raise ClaimLost

    def leave_out(self, processed: Mapping[Identity, Processed]) -> None:
        """These were processed before: what was kept of them stands for their calls."""
        for identity, found in processed.items():
            if self.fresh.pop(identity, None) is not None:
                self._made[identity] = self._keeping.again(found)

    def argument(self) -> Any:
        """What the function gets."""
        self._called = list(self.fresh)
        return [self.items[index] for index in self.fresh.values()]

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
            if is_throttled(failed.error):  # which is nobody's fault, so that nobody uses up an attempt
                raise failed.error
            raise HandlerError(f"rolled back with its batch: {failed.error}") from failed.error
        return outcomes

    def to_keep(self, results: list[tuple[Outcome, bytes]]) -> dict[Identity, bytes]:
        """What to keep of those that are still this call's."""
        kept: dict[Identity, bytes] = {}
        for identity, (outcome, data) in zip(self._called, results, strict=True):
            if identity in self.fresh:
                self._made[identity] = outcome
                if data:
                    kept[identity] = data
        return kept

    @property
    def outcomes(self) -> list[Outcome]:
        """One each."""
        return [self._made[identity] for identity in self._identities]


class _One(_Batch):
    """A single item."""

    def __init__(self, item: Any, keeping: Keeping) -> None:
        identity = keeping.identity_of(item)
        self.items = [item]
        self._keeping = keeping
        self._identities = [identity]
        self._first = {identity: 0}
        self.checksums = {identity: keeping.checksum_of(item)}
        self.begin_anew()

    def argument(self) -> Any:
        self._called = self._identities
        return self.items[0]

    def results(self, result: Outcome) -> list[tuple[Outcome, bytes]]:
        if self._is_lost:
            raise ClaimLost
        return [self._keeping.outcome(result)]


def _may_be_repeated(error: BaseException) -> bool:
    return isinstance(error, UndoneError) or getattr(error, "sqlstate", None) in NOT_SERIALIZED


def _pause_s(repeat: int) -> float:
    """Of chance, so that two calls do not meet again."""
    return random.uniform(0, REPEAT_S * 2 ** (repeat - 1))


def _check_open(transaction: Any) -> None:
    if not transaction.is_open():
        raise UsageError(
            "the handler ended context.transaction, or went on after an error in it: leave commit and rollback to "
            "keylane, and let errors of the database out"
        )
