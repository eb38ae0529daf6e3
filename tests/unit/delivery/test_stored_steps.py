"""Steps under `ExactlyOnce`: the store keeps them, each in a transaction of its own, until their record's commit."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from peers.postgres import PostgresServer, find_postgres

import keylane as kl
from keylane.consumer.start import Start
from keylane.delivery import PostgresStore, SqliteStore
from keylane.delivery.exactly_once import Once
from keylane.delivery.stored_steps import table_of
from keylane.offsets import OffsetMap
from keylane.records import PlainMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
needs_postgres = pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not installed (/usr/lib/postgresql)")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class Database:
    """One of its own, with a table of effects."""

    def __init__(self, store: kl.Store) -> None:
        self.store = store
        self.calls: Counter[int] = Counter()
        self.sql("CREATE TABLE effects (number int)")

    def sql(self, statement: str) -> list[Any]:
        if isinstance(self.store, PostgresStore):
            with psycopg.connect(self.store.conninfo, autocommit=True) as connection:
                made = connection.execute(statement)
                return made.fetchall() if made.description else []
        assert isinstance(self.store, SqliteStore)
        with closing(sqlite3.connect(self.store.path, isolation_level=None)) as database:
            return database.execute(statement).fetchall()

    def ask(self, record: kl.Record) -> str:
        self.calls[record.offset] += 1
        return f"answer {self.calls.total()}"

    def note(self, connection: Any, record: kl.Record) -> Any:
        return connection.execute(f"INSERT INTO effects VALUES ({record.offset})")

    def effects(self) -> list[int]:
        return [number for (number,) in self.sql("SELECT number FROM effects ORDER BY number")]

    def steps(self) -> int:
        return int(self.sql("SELECT count(*) FROM keylane_steps")[0][0])

    def member(self, handler: Callable[..., Any], **once: Any) -> Member:
        return Member(self.store, handler, once)


class Member:
    """As a member does, without its broker."""

    def __init__(self, store: kl.Store, handler: Callable[..., Any], once: dict[str, Any]) -> None:
        delivery = kl.ExactlyOnce(store, **once)
        made = kl.Pipeline(kafka=KAFKA, topics=["t"], handler=handler, delivery=delivery, steps=kl.Steps())
        self.once = Once(made, "cluster", str)
        self.once.check([Start("t", 0, 1, OffsetMap(0), 0, 10)])

    def run(self, records: list[kl.Record], attempts: int = 1) -> list[Any]:
        """What came of each record, with the error of the last attempt."""
        inside: Any = self.once.pipeline
        if inspect.iscoroutinefunction(inside.handler):
            return asyncio.run(self._run_async(inside, records, attempts))
        with closing(self.once), inside.resource():
            return [self._outcome(inside, one, attempts) for one in records]

    def _outcome(self, inside: Any, record: kl.Record, attempts: int) -> Any:
        for attempt in range(1, attempts + 1):
            try:
                return inside.handler(record, kl.Context(attempt=attempt))
            except Exception as error:
                failed = error
        return failed

    async def _run_async(self, inside: Any, records: list[kl.Record], attempts: int) -> list[Any]:
        with closing(self.once):
            async with inside.resource():
                return await asyncio.gather(*(self._outcome_async(inside, one, attempts) for one in records))

    async def _outcome_async(self, inside: Any, record: kl.Record, attempts: int) -> Any:
        for attempt in range(1, attempts + 1):
            try:
                return await inside.handler(record, kl.Context(attempt=attempt))
            except Exception as error:
                failed = error
        return failed

    def commit(self, offset: int) -> None:
        """As the group does, which ends then."""
        commit: Any = SimpleNamespace(name=("t", 0), offset=offset, metadata="", leader_epoch=0)
        self.once.before_commit([commit])
        inside: Any = self.once.pipeline
        inside.on_commit({("t", 0): offset}, None)
        self.once.close()


def records(count: int, value: bytes = b"") -> list[kl.Record]:
    return [kl.Record(PlainMessage("t", 0, offset, value_=value or b"v%d" % offset)) for offset in range(count)]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs_postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(SqliteStore(str(tmp_path / "effects.db")))
    server: PostgresServer = request.getfixturevalue("server")
    name = f"d{abs(hash(request.node.name))}"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return Database(PostgresStore(f"postgresql://postgres@127.0.0.1:{server.port}/{name}"))


def paying(database: Database, fails_before: int, *, is_async: bool) -> Callable[..., Any]:
    """A handler that has a step, then an effect, and fails in its first attempts."""

    def handle(record: kl.Record, context: kl.Context) -> kl.Output:
        answer = context.step(database.ask, record)
        database.note(context.transaction, record)
        if context.attempt < fails_before:
            raise ValueError("the second call fails")
        return kl.Output("answers", value=answer.encode())

    async def handle_async(record: kl.Record, context: kl.Context) -> kl.Output:
        await asyncio.sleep(0)
        answer = await context.step(database.ask, record)
        made = database.note(context.transaction, record)
        if inspect.isawaitable(made):
            await made
        if context.attempt < fails_before:
            raise ValueError("the second call fails")
        return kl.Output("answers", value=answer.encode())

    return handle_async if is_async else handle


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_attempt_takes_its_effect_back_and_keeps_what_was_paid_for(
    database: Database, *, is_async: bool
) -> None:
    found = database.member(paying(database, 3, is_async=is_async)).run(records(5), attempts=3)
    assert len({output.value for (output,) in found}) == 5
    assert database.calls == dict.fromkeys(range(5), 1)
    assert database.effects() == list(range(5))


@pytest.mark.parametrize("is_async", [False, True])
def test_the_next_member_has_the_answers_of_the_one_before(database: Database, *, is_async: bool) -> None:
    failed = database.member(paying(database, 2, is_async=is_async)).run(records(5))
    assert [str(one) for one in failed] == ["the second call fails"] * 5
    assert database.effects() == []
    database.member(paying(database, 0, is_async=is_async)).run(records(5))
    assert database.calls == dict.fromkeys(range(5), 1)
    assert database.effects() == list(range(5))


@pytest.mark.parametrize("is_async", [False, True])
def test_many_at_once_have_each_their_answer(database: Database, *, is_async: bool) -> None:
    found = database.member(paying(database, 2, is_async=is_async)).run(records(60), attempts=2)
    assert len({output.value for (output,) in found}) == 60
    assert database.calls == dict.fromkeys(range(60), 1)
    assert database.effects() == list(range(60))


def test_of_two_that_call_at_once_the_first_answer_is_given_to_both(database: Database) -> None:
    def handle_other(_: kl.Record, context: kl.Context) -> None:
        context.step(lambda: "the other's", name="ask")
        raise ValueError("the second call fails")

    other = database.member(handle_other)

    def ask(record: kl.Record) -> str:
        other.run([record])
        return "mine"

    given: list[str] = []

    def handle(record: kl.Record, context: kl.Context) -> None:
        given.append(context.step(ask, record))

    database.member(handle).run(records(1))
    assert given == ["the other's"]


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_record_that_was_processed_meanwhile_is_not_paid_for(database: Database, *, is_committed: bool) -> None:
    """By who has its partition now: also once it is committed, so that its identity and its steps are deleted."""
    other = database.member(paying(database, 0, is_async=False))

    def handle(record: kl.Record, context: kl.Context) -> kl.Output:
        if not database.calls:
            other.run([record])
            if is_committed:
                other.commit(1)
        context.step(database.ask, record)
        return kl.Output("answers", value=b"another")

    (found,) = database.member(handle).run(records(1))
    assert database.calls == {0: 1}
    assert found is None if is_committed else [output.value for output in found] == [b"answer 1"]
    assert database.effects() == [0]


def test_a_step_inside_the_transaction_is_refused(database: Database) -> None:
    def handle(record: kl.Record, context: kl.Context) -> None:
        database.note(context.transaction, record)
        context.step(database.ask, record)

    async def handle_async(record: kl.Record, context: kl.Context) -> None:
        made = database.note(context.transaction, record)
        if inspect.isawaitable(made):
            await made
        await context.step(database.ask, record)

    for handler in (handle, handle_async):
        (failed,) = database.member(handler).run(records(1))
        assert "have all steps before the first use of context.transaction" in str(failed)
    assert database.effects() == []


def test_steps_of_committed_records_are_deleted(database: Database) -> None:
    member = database.member(paying(database, 0, is_async=False))
    member.run(records(5))
    assert database.steps() == 5
    member.commit(3)
    assert database.steps() == 2


def test_a_key_of_the_users_is_the_same_event_at_any_place(database: Database) -> None:
    once = {"identity": lambda record: record.value}
    database.member(paying(database, 2, is_async=False), **once).run(records(1, b"event"))
    database.member(paying(database, 0, is_async=False), **once).run(records(2, b"event")[1:])
    assert database.calls == {0: 1}


def test_another_record_at_the_same_place_has_no_answer_of_the_first(database: Database) -> None:
    for value in (b"one", b"other"):
        database.member(paying(database, 2, is_async=False)).run(records(1, value))
    assert database.calls == {0: 2}


def test_what_is_forgotten_is_called_again_and_a_key_is_the_same_in_each_attempt(database: Database) -> None:
    keys: set[str] = set()

    def handle(record: kl.Record, context: kl.Context) -> None:
        keys.add(context.step_key("ask"))
        if context.attempt == 2:
            context.forget("ask")
        context.step(database.ask, record)
        if context.attempt < 3:
            raise ValueError

    database.member(handle).run(records(1), attempts=3)
    assert database.calls == {0: 2}
    assert len(keys) == 1


@needs_postgres
def test_a_role_that_may_not_make_the_table_is_told_how_it_is_made(server: PostgresServer) -> None:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("CREATE DATABASE of_others")
        connection.execute("CREATE ROLE member LOGIN")
    owner = Database(PostgresStore(f"postgresql://postgres@127.0.0.1:{server.port}/of_others"))
    owner.store.open().close()
    owner.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO member")
    owner.sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    assert isinstance(owner.store, PostgresStore)
    member = replace(owner.store, conninfo=owner.store.conninfo.replace("postgres@", "member@"))
    handler = paying(owner, 0, is_async=False)
    with pytest.raises(kl.PeerError, match=r"the table of steps is missing, and this role may not make it"):
        Member(member, handler, {})
    owner.sql(table_of("postgresql"))
    owner.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO member")
    Member(member, handler, {}).run(records(1))
    assert owner.calls == {0: 1}


def test_a_store_that_keeps_no_steps_is_refused(database: Database) -> None:
    class Own:
        def open(self) -> Any:
            return database.store.open()

    with pytest.raises(kl.UsageError, match="steps, store: Own keeps no steps: PostgresStore and SqliteStore do"):
        Member(Own(), paying(database, 0, is_async=False), {})


def test_a_topic_of_steps_is_refused() -> None:
    def handle(record: kl.Record, context: kl.Context) -> None: ...

    with pytest.raises(kl.UsageError, match=r"Steps\.topic='kept': under delivery=ExactlyOnce\(\.\.\.\) the store"):
        kl.Pipeline(
            kafka=KAFKA,
            topics=["t"],
            handler=handle,
            delivery=kl.ExactlyOnce(SqliteStore("effects.db")),
            steps=kl.Steps(topic="kept"),
        )
