"""`StoredSteps`: under `ExactlyOnce` the store keeps what steps came to, each in a transaction of its own.

The idea: an answer has to outlast an attempt that fails, whose transaction is rolled back: so it is committed before
the handler goes on, and before that transaction begins. Whoever is first to keep an answer has kept it for all, so that
no owner has to be fenced. A step without an answer whose record was processed meanwhile is not called: one look tells
both, and the attempt ends as any other that has lost its claim.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from keylane.delivery.postgres import PostgresStore
from keylane.delivery.sqlite import SqliteStore
from keylane.delivery.statements import OF_ONE, OF_PARTITION, Housekeeping
from keylane.delivery.steps.formats import RecordIdentity
from keylane.errors import PeerError, UsageError
from keylane.foreign_errors import line_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from keylane.delivery.steps.formats import Step
    from keylane.delivery.stores import Identity, OpenStore, Store, Transaction
    from keylane.records import Context

TABLE = """CREATE TABLE IF NOT EXISTS keylane_steps (
  scope text NOT NULL, part integer NOT NULL, at {bigint} NOT NULL, key text NOT NULL, checksum {bigint} NOT NULL,
  name text NOT NULL, step_key text NOT NULL, kept_ms {bigint} NOT NULL, answer {bytes} NOT NULL,
  PRIMARY KEY (scope, part, at, key, checksum, name, step_key)){table_option}"""
PROBE = "SELECT answer FROM keylane_steps LIMIT 0"
LOCK = "SELECT pg_advisory_xact_lock(7205011)"
"""Keeps others from making the same table at once."""
OF_STEP = f"{OF_ONE} AND checksum = %s AND name = %s AND step_key = %s"
THREADS = 16
"""For steps of coroutines, each for as long as the store takes."""


class Known(Protocol):
    """What items are known by, as `Keeping` has it."""

    def identity_of(self, item: Any) -> Identity: ...
    def checksum_of(self, item: Any) -> int | None: ...


def table_of(dialect: Literal["postgresql", "sqlite"]) -> str:
    """What makes the table."""
    if dialect == "sqlite":
        return TABLE.format(bigint="integer", bytes="blob", table_option=" WITHOUT ROWID")
    return TABLE.format(bigint="bigint", bytes="bytea", table_option="")


def check_store_of_steps(store: Store) -> None:
    """Raises `UsageError` for a store that keeps none."""
    if not isinstance(store, PostgresStore | SqliteStore):
        raise UsageError(
            f"steps, store: {type(store).__name__} keeps no steps: PostgresStore and SqliteStore do; leave steps out"
        )


class StoredSteps:
    """A `StepPlace`, and all there are. Thread safety: any thread, while it is open."""

    def __init__(self, store: Store, known: Known, group: str, claim_lost: type[BaseException]) -> None:
        """`group`: what makes idempotency keys differ from those of others. `claim_lost` ends an attempt whose record
        was processed meanwhile."""
        check_store_of_steps(store)
        self.group = group
        self.running: dict[Step, asyncio.Task[Any]] = {}
        self._store = store
        self._known = known
        self._claim_lost = claim_lost
        self._opened: OpenStore
        self._threads: ThreadPoolExecutor | None = None

    @contextmanager
    def open(self, *, is_async: bool) -> Iterator[None]:
        """Connect, with the table made where it is missing. Steps of coroutines go to threads."""
        opened = self._store.open()
        try:
            make_table(self._store, opened)
            self._opened = opened
            if is_async:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="keylane-steps")
            yield
        finally:
            if self._threads is not None:
                self._threads.shutdown()
            opened.close()

    def steps_of(self, _: Any) -> StoredSteps:
        return self

    def may_call(self) -> bool:
        """What was asked for the answer has told that the record is not processed."""
        return True

    def identity_of(self, item: Any) -> RecordIdentity:
        scope, partition, offset, key = self._known.identity_of(item)
        return RecordIdentity(scope, partition, offset, self._known.checksum_of(item) or 0, key)

    def check(self, context: Context) -> None:
        if context.is_inside:
            raise UsageError(
                "context.step: this attempt's transaction has begun, which would be held for as long as the call "
                "takes: have all steps before the first use of context.transaction"
            )

    def ask(self, step: Step) -> Future[bytes | None]:
        """Raises what ends an attempt whose record was processed meanwhile."""
        return self._do(lambda transaction: self._found(transaction, step))

    def keep(self, step: Step, answer: bytes) -> Future[bytes]:
        def do(transaction: Housekeeping) -> bytes:
            transaction.run(
                "INSERT INTO keylane_steps (scope, part, at, key, checksum, name, step_key, kept_ms, answer) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (*_parameters(step), time.time_ns() // 1_000_000, answer),
            )
            found = self._found(transaction, step)
            assert found is not None, "it was kept, now or before"
            return found

        return self._do(do)

    def forget(self, step: Step) -> Future[None]:
        def do(transaction: Housekeeping) -> None:
            transaction.run(f"DELETE FROM keylane_steps {OF_STEP}", _parameters(step))

        return self._do(do)

    def confirm(self, step: Step) -> Future[None]:
        raise AssertionError(f"nobody has to ask whether {step.name} may be called")

    def _found(self, transaction: Housekeeping, step: Step) -> bytes | None:
        found = transaction.run(f"SELECT answer FROM keylane_steps {OF_STEP}", _parameters(step)).fetchone()
        if found is not None:
            return bytes(found[0])
        scope, partition, offset, _, key = step.record
        processed = transaction.run(f"SELECT 1 FROM keylane_processed {OF_ONE}", (scope, partition, offset, key))
        if processed.fetchone() or 0 <= offset < transaction.purged_below(scope, partition):
            raise self._claim_lost
        return None

    def _do(self, do: Callable[[Housekeeping], Any]) -> Future[Any]:
        """In a transaction of its own: at once, or on a thread where an event loop would stand still."""
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # nobody can cancel it: an answer is kept, whoever waits

        def run() -> None:
            try:
                done.set_result(self._in_transaction(do))
            except BaseException as error:
                done.set_exception(error)

        if self._threads is None:
            run()
        else:
            self._threads.submit(run)
        return done

    def _in_transaction(self, do: Callable[[Housekeeping], Any]) -> Any:
        with self._opened.transaction() as transaction:
            assert isinstance(transaction, Housekeeping), "the store was checked"
            return do(transaction)


def make_table(store: Store, opened: OpenStore) -> None:
    """Where it is missing. Raises `PeerError` for a role that may not."""
    if isinstance(store, SqliteStore):
        with opened.transaction() as transaction:
            assert isinstance(transaction, Housekeeping), "the store was checked"
            transaction.run(table_of("sqlite"))
        return
    import psycopg

    try:
        with opened.transaction() as transaction:
            transaction.connection.execute(PROBE)
    except psycopg.errors.UndefinedTable:
        pass
    else:
        return
    try:
        with opened.transaction() as transaction:
            transaction.connection.execute(LOCK)
            transaction.connection.execute(table_of("postgresql"))
    except psycopg.errors.InsufficientPrivilege as error:
        raise PeerError(
            f"PostgresStore: the table of steps is missing, and this role may not make it ({line_of(error)}): "
            "`keylane store schema` prints the statements for whoever may"
        ) from error


def purge(transaction: Transaction, scope: str, partition: int, below: int) -> None:
    """Of places below this offset, which nobody can ask for again."""
    assert isinstance(transaction, Housekeeping), "the store was checked"
    transaction.run(f"DELETE FROM keylane_steps {OF_PARTITION} AND at >= 0 AND at < %s", (scope, partition, below))


def purge_before(transaction: Transaction, scope: str, before_ms: int) -> None:
    """Of what was kept before this time, in milliseconds since the epoch."""
    assert isinstance(transaction, Housekeeping), "the store was checked"
    transaction.run("DELETE FROM keylane_steps WHERE scope = %s AND kept_ms < %s", (scope, before_ms))


def _parameters(step: Step) -> tuple[Any, ...]:
    scope, partition, offset, checksum, key = step.record
    return scope, partition, offset, key, checksum, step.name, step.key
