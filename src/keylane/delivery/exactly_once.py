"""`Once`: a pipeline whose handler's effects and whose records' identities are in one database transaction.

The idea: the handler is wrapped. A transaction begins, the record's identity is claimed in it, and the handler gets it
open; what was claimed by an earlier transaction is skipped, and only its outputs, which were kept with it, are given to
the engine again. So a crash anywhere leaves either both or neither. Kafka's commits go on as at least once: they decide
how much is asked for again, never whether it happens again. (Kafka Internals, consumption semantics: "process exactly
once" by persisted message details.)

Identities below a partition's committed offset cannot be asked for again, but by somebody who moves the group's offset
back, which is refused at the start. They are purged, whoever committed that offset: a member that was killed purges
nothing, so its successors go by where they start, and whoever ends asks what the group has committed.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from keylane.consumer.own_topics import OwnTopics
from keylane.consumer.returns import outcome_of, outcomes_of
from keylane.delivery.postgres import PostgresStore
from keylane.delivery.sqlite import SqliteStore
from keylane.delivery.stores import AsyncStore, Identity, Processed, Store
from keylane.errors import HandlerError, PeerError, UsageError
from keylane.flow.outcomes import Failure
from keylane.options import ExactlyOnce, takes_context
from keylane.records import Output
from keylane.telling import kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from keylane.consumer.start import Start
    from keylane.delivery.stores import OpenAsyncStore, OpenStore
    from keylane.pipeline import Pipeline
    from keylane.records import Context, Record

logger = logging.getLogger("keylane.delivery")

PURGE_EVERY_S = 10.0
"""How long after a commit identities are purged at the latest."""

ANSWER_S = 60.0
"""How long a rebalance waits for a database that has answered before: a restart."""

ASK_AGAIN_S = 0.5


def store_of(store: Store | str) -> Store:
    """A store by its address: of PostgreSQL, or the path of a SQLite file."""
    if not isinstance(store, str):
        return store
    return PostgresStore(store) if store.startswith(("postgresql://", "postgres://")) else SqliteStore(store)


def unavailable(store: Store, error: BaseException) -> PeerError:
    """The store does not answer, or refuses."""
    return PeerError(f"{type(store).__name__} does not answer: {type(error).__name__}: {error}".strip())


@contextmanager
def _opening(store: Store) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise unavailable(store, error) from error


def once_of(pipeline: Pipeline) -> ExactlyOnce:
    """Its options."""
    assert isinstance(pipeline.delivery, ExactlyOnce), pipeline.delivery
    return pipeline.delivery


class Identities:
    """What records are known by. Thread safety: `know` comes before the records of its topics."""

    def __init__(self, cluster: str, pipeline: Pipeline) -> None:
        self._group = f"{cluster}/{pipeline.group_id}"
        self._function = once_of(pipeline).identity
        self._scopes: dict[str, str] = {}

    @property
    def group(self) -> str:
        """The scope of keys."""
        return self._group

    @property
    def by_key(self) -> bool:
        return self._function is not None

    def know(self, topic: str, topic_id: str) -> None:
        """A topic's id; empty where the broker knows none."""
        self._scopes[topic] = f"{self._group}/{topic}/{topic_id}"

    def knows(self, topic: str) -> bool:
        return topic in self._scopes

    def scope(self, topic: str) -> str:
        return self._scopes[topic]

    def of(self, record: Record) -> Identity:
        if self._function is None:
            return Identity(self._scopes[record.topic], record.partition, record.offset)
        key = self._function(record)
        if isinstance(key, bytes):
            key = key.hex()
        if not isinstance(key, str) or not key:
            raise UsageError(
                f"identity returned {_shown_key(key)} for {record!r}: return a str or bytes that is not empty"
            )
        return Identity(self._group, -1, -1, key)


def _shown_key(key: object) -> str:
    return "an empty key" if isinstance(key, str) else kind_of(key)


class Once:
    """The pipeline to run, and what has to be done beside it. `group_committed` asks what the group has committed of
    each partition, by any member; None when the group's offsets are kept elsewhere. Thread safety: `check` is the
    group's thread's."""

    def __init__(
        self,
        pipeline: Pipeline,
        cluster: str,
        topic_id: Callable[[str], str],
        group_committed: Callable[[], Mapping[tuple[str, int], int]] | None = None,
    ) -> None:
        self._store = store_of(once_of(pipeline).store)
        if pipeline.is_async and not isinstance(self._store, AsyncStore):
            raise UsageError(
                f"store: {type(self._store).__name__} has no open_async, which handlers that are coroutines need"
            )
        self._topic_id = topic_id
        self._own_topics = OwnTopics(pipeline)
        self._group_committed = group_committed
        self.identities = Identities(cluster, pipeline)
        self._house = House(self._store, self.identities, pipeline)
        self.pipeline = replace(
            pipeline,
            handler=_handler(pipeline, self),
            resource=self._async_resource if pipeline.is_async else self._resource,
            on_commit=self._house.committed,
        )
        self._user_resource = pipeline.resource
        self.opened: OpenStore
        self.opened_async: OpenAsyncStore

    def check(self, starts: Sequence[Start]) -> None:
        """Partitions were assigned, and nothing of them has begun. Raises `PeerError` for a start below what is purged:
        records that are long processed would be skipped unseen."""
        for topic in {start.topic for start in starts}:
            self.identities.know(topic, self._topic_id(topic))
        if not self.identities.by_key:
            self._house.check(starts)

    def close(self) -> None:
        """Purge what the group has committed, and disconnect. The run is over."""
        try:
            if self._group_committed is not None and not self.identities.by_key:
                self._house.note(self._committed_by_all(self._group_committed))
        except PeerError as error:  # a broker that is gone: the next start of these partitions makes up for it
            logger.warning("identities of partitions that others committed are not purged now: %s", error)
        finally:
            self._house.close()

    def _committed_by_all(self, ask: Callable[[], Mapping[tuple[str, int], int]]) -> Mapping[tuple[str, int], int]:
        committed = ask()
        for topic in {topic for topic, _ in committed}:
            if not self.identities.knows(topic):  # this member had none of its partitions
                self.identities.know(topic, self._topic_id(topic))
        return committed

    def checked(self, result: Any, transaction: Any) -> Any:
        """What the handler returned, once it is sure that it can be committed."""
        outcome = self.allowed(outcome_of(result))
        if isinstance(outcome, Failure):
            raise outcome.error
        _check_open(transaction)
        return outcome

    def allowed(self, outcome: Any) -> Any:
        """An outcome as it is, or why its outputs may not be kept and produced: refused after the commit, they would
        be asked for again and again."""
        if outcome is None or isinstance(outcome, Failure):
            return outcome
        return self._own_topics.refused(outcome) or outcome

    @contextmanager
    def _resource(self) -> Iterator[Any]:
        """Of the worker threads: the user's, and the store's connections."""
        with _opening(self._store):
            self.opened = self._store.open()
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
        assert isinstance(self._store, AsyncStore)
        with _opening(self._store):
            self.opened_async = await self._store.open_async()
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


class House:
    """Keeps house in the store: starts are held against what is purged, and identities that nobody can ask for again
    are purged. Thread safety: any thread."""

    def __init__(self, store: Store, identities: Identities, pipeline: Pipeline) -> None:
        self._store = store
        self._identities = identities
        self._group = pipeline.group_id
        self._retention_ms = once_of(pipeline).retention_ms
        self._on_commit = pipeline.on_commit
        self._lock = threading.Lock()
        """Guards the connection and what is to purge."""
        self._opened: OpenStore | None = None
        self._has_answered = False
        """Whether it was ever opened."""
        self._committed: dict[tuple[str, int], int] = {}
        """Below which offsets of the partitions is to purge."""
        self._timer: threading.Timer | None = None
        """For the next purge, while there is something to purge."""
        self._closing = threading.Event()

    def check(self, starts: Sequence[Start]) -> None:
        give_up_at = time.monotonic() + (ANSWER_S if self._has_answered else 0)
        while True:
            with self._lock:
                try:
                    with self._connected().transaction() as transaction:
                        purged = [
                            transaction.purged_below(self._identities.scope(one.topic), one.partition) for one in starts
                        ]
                except UsageError:  # a package that is missing: waiting does not bring it
                    raise
                except Exception as error:  # a database that restarts, or is not there
                    failed = error
                else:
                    self._refuse(starts, purged)
                    self._note({(one.topic, one.partition): one.offsets.base for one in starts})
                    return
            if self._closing.wait(ASK_AGAIN_S) or time.monotonic() >= give_up_at:
                raise unavailable(self._store, failed) from failed

    def _refuse(self, starts: Sequence[Start], purged: Sequence[int]) -> None:
        for start, below in zip(starts, purged, strict=True):
            if start.offsets.base < below:
                raise PeerError(
                    f"group {self._group!r} starts {start.topic}-{start.partition} at offset {start.offsets.base}, and "
                    f"what was processed below {below} is purged from the store: those records would be skipped; set "
                    f"the group's offset to {below} or above, or use another group.id"
                )

    def committed(self, offsets: Mapping[tuple[str, int], int], error: BaseException | None) -> None:
        """The pipeline's `on_commit`."""
        if self._on_commit is not None:  # first: it may be who keeps the offsets
            self._on_commit(offsets, error)
        if error is None:
            self.note(offsets)

    def note(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """The group has these offsets in acknowledged commits: what is below them may be purged."""
        with self._lock:
            self._note(offsets)

    def _note(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self._committed |= offsets
        if self._timer is None and not self._closing.is_set():
            self._timer = threading.Timer(PURGE_EVERY_S, self._purge_in_time)
            self._timer.daemon = True
            self._timer.start()

    def _purge_in_time(self) -> None:
        with self._lock:
            self._timer = None
            if not self._closing.is_set() and not self._purge():
                self._note({})

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if not self._purge():  # the connections may be of before the database's restart
                self._purge()
            self._disconnect()

    def _purge(self) -> bool:
        """Whether all is purged. What fails here is tried again later: nothing depends on it."""
        if not self._committed:
            return True
        try:
            with self._connected().transaction() as transaction:
                if self._identities.by_key:
                    before_ms = time.time_ns() // 1_000_000 - self._retention_ms
                    transaction.purge_keys(self._identities.group, before_ms)
                else:
                    for (topic, partition), offset in sorted(self._committed.items()):
                        transaction.purge(self._identities.scope(topic), partition, offset)
        except Exception as error:  # a database that does not answer
            logger.warning("identities could not be purged, and will be later: %s: %s", type(error).__name__, error)
            self._disconnect()
            return False
        self._committed.clear()
        return True

    def _connected(self) -> OpenStore:
        if self._opened is None:
            self._opened = self._store.open()
            self._has_answered = True
        return self._opened

    def _disconnect(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


# --- the handler ---


def _handler(pipeline: Pipeline, once: Once) -> Callable[..., Any]:
    """The user's handler, inside a transaction."""
    handler, takes = pipeline.handler, takes_context(pipeline.handler)
    kind = _AsyncCalls if pipeline.is_async else _Calls
    calls = kind(once, lambda what, context: handler(what, context) if takes else handler(what))
    return calls.of_batch if pipeline.batch is not None else calls.of_one


class _Calls:
    """For functions."""

    def __init__(self, once: Once, handler: Callable[[Any, Context], Any]) -> None:
        self._once = once
        self._handler = handler

    def of_one(self, record: Record, context: Context) -> Any:
        identity = self._once.identities.of(record)
        with self._once.opened.transaction() as transaction:
            processed = transaction.claim(identity)
            if processed is not None:
                return outputs_of(processed)
            result = self._call(record, context, transaction)
            if kept := _kept(self._once.checked(result, transaction)):
                transaction.keep(identity, kept)
            return result

    def of_batch(self, records: Sequence[Record], context: Context) -> list[Any]:
        batch = _Batch(records, self._once)
        with self._once.opened.transaction() as transaction:
            for index in batch.in_order:
                batch.claimed(index, transaction.claim(batch.identities[index]))
            if batch.fresh:
                result = self._call([records[index] for index in batch.fresh], context, transaction)
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

    def __init__(self, once: Once, handler: Callable[[Any, Context], Any]) -> None:
        self._once = once
        self._handler = handler

    async def of_one(self, record: Record, context: Context) -> Any:
        identity = self._once.identities.of(record)
        async with self._once.opened_async.transaction() as transaction:
            processed = await transaction.claim(identity)
            if processed is not None:
                return outputs_of(processed)
            result = await self._call(record, context, transaction)
            if kept := _kept(self._once.checked(result, transaction)):
                await transaction.keep(identity, kept)
            return result

    async def of_batch(self, records: Sequence[Record], context: Context) -> list[Any]:
        batch = _Batch(records, self._once)
        async with self._once.opened_async.transaction() as transaction:
            for index in batch.in_order:
                batch.claimed(index, await transaction.claim(batch.identities[index]))
            if batch.fresh:
                result = await self._call([records[index] for index in batch.fresh], context, transaction)
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
    """Records of one call, in one transaction."""

    def __init__(self, records: Sequence[Record], once: Once) -> None:
        self._records = records
        self._once = once
        self.identities = [once.identities.of(record) for record in records]
        self.in_order = sorted(range(len(records)), key=self.identities.__getitem__)
        """By identity, so that two transactions that claim the same ones do not wait for each other."""
        self.outcomes: list[Any] = [None] * len(records)
        self.fresh: list[int] = []
        """Which were not processed before; those that follow of the same identity were."""

    def claimed(self, index: int, processed: Processed | None) -> None:
        if processed is None:
            self.fresh.append(index)
            self.fresh.sort()
        else:
            self.outcomes[index] = outputs_of(processed)

    def results(self, result: Any, transaction: Any) -> list[tuple[Identity, bytes]]:
        """What to keep. One record that fails takes the transaction along, and so the others of its batch: they are
        tried again each alone."""
        outcomes = [self._once.allowed(one) for one in outcomes_of(result, len(self.fresh))]
        if failed := next((one for one in outcomes if isinstance(one, Failure)), None):
            if len(self._records) == 1 or all(isinstance(one, Failure) for one in outcomes):
                raise failed.error
            raise HandlerError(f"rolled back with its batch: {failed.error}") from failed.error
        _check_open(transaction)
        for index, outcome in zip(self.fresh, outcomes, strict=True):
            self.outcomes[index] = outcome
        kept = [(self.identities[index], _kept(outcome)) for index, outcome in zip(self.fresh, outcomes, strict=True)]
        return [(identity, data) for identity, data in kept if data]


def _check_open(transaction: Any) -> None:
    if not transaction.is_open():
        raise UsageError(
            "the handler ended context.transaction, or went on after an error in it: leave commit and rollback to "
            "keylane, and let errors of the database out"
        )


# --- outputs that are kept ---


def _kept(outcome: Any) -> bytes:
    """Outputs as they are kept with an identity."""
    if not outcome:
        return b""
    rows = []
    for one in outcome:
        headers = [[name, _text(value)] for name, value in one.headers]
        rows.append([one.topic, _text(one.key), _text(one.value), headers, one.partition, one.timestamp_ms])
    return json.dumps(rows).encode()


def outputs_of(processed: Processed) -> list[Output] | None:
    """What a record that was processed before has to produce, for want of knowing whether it did."""
    if not processed.outputs:
        return None
    return [
        Output(topic, _bytes(key), _bytes(value), [(name, _bytes(of)) for name, of in headers], partition, timestamp_ms)
        for topic, key, value, headers, partition, timestamp_ms in json.loads(processed.outputs)
    ]


def _text(data: bytes | str | None) -> str | None:
    if data is None:
        return None
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
