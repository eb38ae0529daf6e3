"""PostgreSQL as companies run it: schemas by options, roles that make nothing, poolers, other isolation levels."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from peers.postgres import PostgresServer, find_postgres

from keylane import Context, PeerError, Pipeline, Record, UsageError
from keylane.consumer.start import Start
from keylane.delivery import Identity, PostgresStore
from keylane.delivery.claims import answers
from keylane.delivery.deferred import DeferredConnection
from keylane.delivery.exactly_once import Once
from keylane.delivery.postgres import PATIENCE
from keylane.offsets import OffsetMap
from keylane.options import Batch, ExactlyOnce
from keylane.records import PlainMessage
from kit.pgbouncer import find_bouncer, started_bouncer
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not installed (/usr/lib/postgresql)")
needs_bouncer = pytest.mark.skipif(find_bouncer() is None, reason="PgBouncer is not installed")

SCHEMA = "options=-csearch_path%3Dtenant"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class Database:
    """One of its own."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        self.conninfo = self.at(server.port)

    def at(self, port: int, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{port}/{self.name}"

    def sql(self, *statements: str) -> list[Any]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in statements:
                made = connection.execute(statement)
            return made.fetchall() if made.description else []

    def schemas(self) -> set[str]:
        """In which keylane's tables are."""
        return {name for (name,) in self.sql("SELECT schemaname FROM pg_tables WHERE tablename LIKE 'keylane_%'")}


@pytest.fixture
def database(server: PostgresServer, request: pytest.FixtureRequest) -> Database:
    name = f"d{abs(hash(request.node.name))}"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    made = Database(server, name)
    made.sql("CREATE SCHEMA tenant", *(f"CREATE TABLE {one}.effects (number int)" for one in ("tenant", "public")))
    return made


def note(record: Any, context: Any) -> None:
    context.transaction.execute("INSERT INTO effects VALUES (%s)", (record.offset,))


async def note_async(record: Any, context: Any) -> None:
    await context.transaction.execute("INSERT INTO effects VALUES (%s)", (record.offset,))


def run(store: PostgresStore, handler: Callable[..., Any], records: int = 5) -> None:
    """As a member does, without its broker."""
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    once = Once(Pipeline(kafka=kafka, topics=["t"], handler=handler, delivery=ExactlyOnce(store)), "cluster", str)
    once.check([Start("t", 0, 1, OffsetMap(0), 0, records)])
    inside: Any = once.pipeline
    made = [Record(PlainMessage("t", 0, offset)) for offset in range(records)]
    if handler is note_async:

        async def all_of_them() -> None:
            async with inside.resource():
                await asyncio.gather(*(inside.handler(one, Context()) for one in made))

        asyncio.run(all_of_them())
    else:
        with inside.resource():
            for one in made:
                inside.handler(one, Context())
    once.close()


@pytest.mark.parametrize("handler", [note, note_async])
def test_options_in_the_address_hold(database: Database, handler: Callable[..., Any]) -> None:
    """A tenant's schema is named so; dropped, rows go to another tenant's table."""
    run(PostgresStore(f"{database.conninfo}?{SCHEMA}"), handler)
    assert database.sql("SELECT (SELECT count(*) FROM tenant.effects), (SELECT count(*) FROM public.effects)") == [
        (5, 0)
    ]
    assert database.schemas() == {"tenant"}


def test_options_of_the_environment_hold(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c search_path=tenant")
    run(PostgresStore(database.conninfo), note)
    assert database.sql("SELECT count(*) FROM tenant.effects") == [(5,)]
    assert database.schemas() == {"tenant"}


@pytest.mark.parametrize("handler", [note, note_async])
@pytest.mark.parametrize("is_pooled", [False, pytest.param(True, marks=needs_bouncer)])
def test_a_database_without_an_encoding_knows_what_was_processed(
    server: PostgresServer, handler: Callable[..., Any], *, is_pooled: bool
) -> None:
    """`initdb` makes it so where the locale is C; psycopg then leaves text as bytes, and a key is no key that is asked
    for."""
    name = f"ascii_{handler.__name__}_{is_pooled}".lower()
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    database = Database(server, name)
    database.sql("CREATE TABLE effects (number int)")
    texts: list[Any] = []

    def looks(record: Any, context: Any) -> None:
        note(record, context)
        texts.append(context.transaction.execute("SELECT 'text'::text").fetchone()[0])

    with started_bouncer(server.port) if is_pooled else nullcontext(server.port) as port:
        for _ in range(2):  # the second time, each record comes again
            run(PostgresStore(database.at(port)), looks if handler is note else handler)
    assert database.sql("SELECT count(*) FROM effects") == [(5,)]
    assert texts in ([], ["text"] * 5)


@needs_bouncer
@pytest.mark.parametrize("handler", [note, note_async])
@pytest.mark.parametrize("more", ["", "ignore_startup_parameters = options"])
def test_a_pooler_that_keeps_no_sessions_is_worked_with(
    database: Database, handler: Callable[..., Any], more: str
) -> None:
    """The one refuses what other connections ask for at their start, the other drops it."""
    timeouts: list[str] = []

    def looks(record: Any, context: Any) -> None:
        timeouts.append(context.transaction.execute("SHOW idle_in_transaction_session_timeout").fetchone()[0])

    with started_bouncer(database.server.port, more) as port:
        store = PostgresStore(database.at(port), idle_timeout_ms=7_000)
        run(store, handler, 100)
        run(store, looks, 105)
    assert database.sql("SELECT count(*), count(DISTINCT number) FROM effects") == [(100, 100)]
    assert set(timeouts) == {"7s"}, "a frozen process does not keep its record for ever there either"
    assert database.sql("SHOW idle_in_transaction_session_timeout") == [("0",)]


@needs_bouncer
@pytest.mark.parametrize("more", ["", "ignore_startup_parameters = options"])
def test_options_that_a_pooler_drops_are_refused(database: Database, more: str) -> None:
    text = "options='-csearch_path=tenant' do not reach the server, since a pooler"
    with started_bouncer(database.server.port, more) as port, pytest.raises(UsageError, match=text):
        PostgresStore(f"{database.at(port)}?{SCHEMA}").open()
    assert database.schemas() == set()


def test_a_role_that_may_make_nothing_starts_where_the_tables_are(database: Database) -> None:
    role = f"r{database.name}"
    database.sql(f"CREATE ROLE {role} LOGIN", f"GRANT INSERT ON effects TO {role}")
    store = PostgresStore(database.at(database.server.port, role))
    with pytest.raises(
        PeerError, match=r"this role may not make them .*: `keylane store schema` prints the statements"
    ):
        store.open()
    printed = subprocess.run(
        [sys.executable, "-m", "keylane", "store", "schema"], check=True, capture_output=True, text=True
    )
    database.sql(printed.stdout, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    run(store, note)
    assert database.sql("SELECT count(*) FROM effects") == [(5,)]


def test_tables_of_before_there_were_checksums_get_what_they_lack(database: Database) -> None:
    database.sql(
        "CREATE TABLE keylane_processed (scope text NOT NULL, part integer NOT NULL, at bigint NOT NULL, "
        "key text NOT NULL, done_ms bigint NOT NULL, outputs bytea, PRIMARY KEY (scope, part, at, key))",
        "CREATE TABLE keylane_purged (scope text, part integer, below bigint, PRIMARY KEY (scope, part))",
        "INSERT INTO keylane_processed VALUES ('cluster/g/t/t', 0, 3, '', 1, NULL)",
    )
    run(PostgresStore(database.conninfo), note)
    assert database.sql("SELECT number FROM effects ORDER BY number") == [(0,), (1,), (2,), (4,)]


def test_tables_get_what_they_lack_while_a_member_runs(database: Database) -> None:
    """It holds one table, and asks for another."""
    PostgresStore(database.conninfo).open().close()
    database.sql("ALTER TABLE keylane_positions DROP COLUMN leader_epoch")

    def waiting() -> bool:
        return bool(database.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"))

    with ThreadPoolExecutor(1) as pool, psycopg.connect(database.conninfo) as member:
        member.execute("SELECT * FROM keylane_positions")
        starts = pool.submit(PostgresStore(database.conninfo).open)
        until(waiting, "the start waits for the member's transaction")
        member.execute("SELECT * FROM keylane_processed")
        member.rollback()
        starts.result().close()
    assert database.sql("SELECT leader_epoch FROM keylane_positions") == []


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_transactions_that_cannot_be_serialized_are_nobodys_attempt(database: Database, isolation: str) -> None:
    """Each goes through in one call of the wrapper, which is one attempt."""
    database.sql(
        f"ALTER DATABASE {database.name} SET default_transaction_isolation = '{isolation}'",
        "CREATE TABLE totals AS SELECT 0 AS counted",
    )
    ready = threading.Barrier(4)
    calls = []

    def counts(record: Any, context: Any) -> None:
        calls.append(record.offset)
        (before,) = context.transaction.execute("SELECT counted FROM totals").fetchone()
        if len(calls) <= 4:
            ready.wait(30)  # all have read the same
        context.transaction.execute("UPDATE totals SET counted = %s", (before + 1,))

    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    delivery = ExactlyOnce(PostgresStore(database.conninfo))
    once = Once(Pipeline(kafka=kafka, topics=["t"], handler=counts, delivery=delivery), "cluster", str)
    once.check([Start("t", 0, 1, OffsetMap(0), 0, 4)])
    inside: Any = once.pipeline
    with inside.resource():
        made = [(Record(PlainMessage("t", 0, offset)), Context()) for offset in range(4)]
        threads = [threading.Thread(target=inside.handler, args=one) for one in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    once.close()
    assert database.sql("SELECT counted FROM totals") == [(4,)]
    assert len(calls) > 4, "some were called again"


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read", "read committed"])
def test_a_purge_that_comes_before_the_claim_is_seen(database: Database, isolation: str) -> None:
    """By a process that was frozen in its transaction, whose snapshot may be of before."""
    database.sql(f"ALTER DATABASE {database.name} SET default_transaction_isolation = '{isolation}'")
    store = PostgresStore(database.conninfo)
    run(store, note, 0)
    opened = store.open()
    found: Any = None
    try:
        with opened.transaction() as frozen:
            frozen.connection.execute("SELECT 1 FROM keylane_processed")
            with opened.transaction() as other:
                other.purge("cluster/g/t/t", 0, 5)
            found = frozen.claim_all({Identity("cluster/g/t/t", 0, 3): 1})
    except psycopg.errors.SerializationFailure:
        found = "repeated"
    assert found, "it is not this one's"
    opened.close()


def test_a_coroutine_has_its_connection_with_the_first_statement(database: Database) -> None:
    begun: list[int] = []

    async def tries() -> None:
        async with await psycopg.AsyncConnection.connect(database.conninfo) as connection:

            async def begin() -> psycopg.AsyncConnection[Any]:
                begun.append(1)
                return connection

            def deferred() -> Any:
                return DeferredConnection(begin)

            one = deferred()
            assert begun == []
            with pytest.raises(UsageError, match=r"context.transaction has no info before its first statement"):
                _ = one.info
            assert await (await one.execute("SELECT 7")).fetchone() == (7,)
            assert one.info is not None
            async with deferred().cursor() as cursor:
                await cursor.execute("SELECT 8")
                assert [row async for row in cursor] == [(8,)]
            later = deferred().cursor()
            with pytest.raises(UsageError, match=r"a cursor of context.transaction has no rowcount before"):
                _ = later.rowcount
            await later.executemany("INSERT INTO effects VALUES (%s)", [(1,), (2,)])
            assert later.rowcount == 2
            async with deferred().transaction():
                await connection.execute("INSERT INTO effects VALUES (3)")
            assert await deferred() is connection
            with pytest.raises(AttributeError):
                _ = deferred().no_such_thing

    asyncio.run(tries())
    assert len(begun) == 5


@pytest.mark.parametrize("handler", [note, note_async])
def test_a_record_needs_three_round_trips(
    database: Database, handler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """BEGIN goes with the claim and the look at what is purged; then come the handler's statement, and COMMIT."""
    store = PostgresStore(database.conninfo, connections=1)
    run(store, handler, 1)  # the tables are there
    waits = 0
    kind = psycopg.AsyncConnection if handler is note_async else psycopg.Connection
    wait = kind.wait

    def counting(*arguments: Any, **options: Any) -> Any:
        nonlocal waits
        waits += 1
        return wait(*arguments, **options)

    monkeypatch.setattr(kind, "wait", counting)
    counts = []
    for records in (1, 11):
        waits = 0
        run(store, handler, records)
        counts.append(waits)
    assert counts[1] - counts[0] == 10 * 3


@pytest.mark.parametrize("records", [2, 100])
def test_a_batch_is_claimed_by_one_statement(database: Database, records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at what is purged is another one; each is sent once."""

    def effects(found: Any, context: Any) -> None:
        context.transaction.execute("INSERT INTO effects SELECT unnest(%s::int[])", ([one.offset for one in found],))

    store = PostgresStore(database.conninfo, connections=1)
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    options: dict[str, Any] = {"batch": Batch(records), "delivery": ExactlyOnce(store)}
    once = Once(Pipeline(kafka=kafka, topics=["t"], handler=effects, **options), "cluster", str)
    once.check([Start("t", 0, 1, OffsetMap(0), 0, records)])
    sent: list[str] = []
    execute = psycopg.Connection.execute

    def noting(self: Any, query: str, *arguments: Any, **given: Any) -> Any:
        sent.append(query)
        return execute(self, query, *arguments, **given)

    def noting_commands(connection: Any, server: Any, commands: Any) -> Any:
        sent.extend(server.statements[name].decode() for name, _ in commands)
        return answers(connection, server, commands)

    inside: Any = once.pipeline
    with inside.resource():
        monkeypatch.setattr(psycopg.Connection, "execute", noting)
        monkeypatch.setattr("keylane.delivery.pools.answers", noting_commands)
        inside.handler([Record(PlainMessage("t", 0, offset)) for offset in range(records)], Context())
        monkeypatch.undo()
    once.close()
    assert [" ".join(one.split()[:3]) for one in sent] == [
        "BEGIN",
        "INSERT INTO keylane_processed",
        "SELECT scope, part,",
        "INSERT INTO effects",
    ]
    assert database.sql("SELECT number FROM effects ORDER BY number") == [(offset,) for offset in range(records)]


AWKWARD = ["a", '"', "\\", "a,b", "{}", "NULL", "null", " b ", "'", "é", "a"]


@pytest.mark.parametrize("has_pipeline", [True, False])
def test_keys_are_claimed_as_they_are(database: Database, has_pipeline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one and many at once, by a libpq with a pipeline and by an old one."""
    monkeypatch.setattr("keylane.delivery.claims.has_pipeline", lambda: has_pipeline)
    given = {Identity('g{,"', -1, -1, key): number or None for number, key in enumerate(AWKWARD)}
    given |= {Identity("g", partition, 7): 9 for partition in range(2)}
    with closing(PostgresStore(database.conninfo).open()) as store:
        for one, checksum in list(given.items())[::3]:
            with store.transaction() as transaction:
                assert not transaction.claim_all({one: checksum})
        with store.transaction() as transaction:
            found = transaction.claim_all(given)
        assert {one: processed.checksum for one, processed in found.items()} == dict(list(given.items())[::3])
        assert set(store.find(given)) == set(given)


@pytest.mark.parametrize("count", [1, 2])
def test_a_key_that_the_server_cannot_hold_is_refused(database: Database, count: int) -> None:
    """It would pass for the part of it that libpq reads."""
    given = {Identity("g", -1, -1, f"{number}\0"): 0 for number in range(count)}
    with closing(PostgresStore(database.conninfo).open()) as store:
        with pytest.raises(psycopg.DataError, match="NUL"), store.transaction() as transaction:
            transaction.claim_all(given)
        with store.transaction() as transaction:
            assert not transaction.claim_all({Identity("g", -1, -1, "0"): 0})


def test_a_handler_may_deallocate_what_its_connection_has_prepared(database: Database) -> None:
    """keylane's statements are among it."""
    with closing(PostgresStore(database.conninfo, connections=1).open()) as store:
        for offset in range(2):
            with store.transaction() as transaction:
                assert not transaction.claim_all({Identity("g", 0, offset): 0})
                transaction.connection.execute("DEALLOCATE ALL")
        assert len(store.find([Identity("g", 0, offset) for offset in range(2)])) == 2


def test_a_claim_that_fails_leaves_its_connection_usable(database: Database) -> None:
    database.sql("CREATE DOMAIN small AS bigint CHECK (VALUE < 100)")
    PostgresStore(database.conninfo).open().close()
    database.sql("ALTER TABLE keylane_processed ALTER COLUMN at TYPE small")
    with closing(PostgresStore(database.conninfo, connections=1).open()) as store:
        with pytest.raises(psycopg.errors.CheckViolation), store.transaction() as transaction:
            transaction.claim_all({Identity("g", 0, 100): 0})
        with store.transaction() as transaction:
            assert not transaction.claim_all({Identity("g", 0, 99): 0})


def test_a_table_that_is_altered_fails_one_claim_of_a_connection(database: Database) -> None:
    with closing(PostgresStore(database.conninfo, connections=1).open()) as store:
        with store.transaction() as transaction:
            assert not transaction.claim_all({Identity("g", 0, 1): 0})
        database.sql("ALTER TABLE keylane_purged ALTER COLUMN below TYPE numeric")
        with pytest.raises(psycopg.errors.FeatureNotSupported), store.transaction() as transaction:
            transaction.claim_all({Identity("g", 0, 2): 0})
        with store.transaction() as transaction:
            assert not transaction.claim_all({Identity("g", 0, 2): 0})


def patience_of(database: Database, given: str = "") -> dict[str, str]:
    """What a handler's connection has of libpq's parameters that bound a wait for a silent server."""
    with closing(PostgresStore(database.conninfo + given).open()) as store, store.transaction() as transaction:
        found = transaction.connection.info.get_parameters()
    return {name: value for name, value in found.items() if name.startswith(("connect_", "keepalives_", "tcp_"))}


def test_no_connection_waits_for_ever_for_a_silent_server(database: Database) -> None:
    assert patience_of(database) == {name: str(value) for name, value in PATIENCE.items()}


def test_what_the_user_says_of_timeouts_holds(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "3")
    found = patience_of(database, "?tcp_user_timeout=7000")
    assert found["tcp_user_timeout"] == "7000"
    assert found.get("connect_timeout", "3") == "3"
    assert found["keepalives_idle"] == str(PATIENCE["keepalives_idle"])
