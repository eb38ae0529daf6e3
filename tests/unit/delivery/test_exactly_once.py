"""Exactly once on SQLite and a broker in memory: what is replayed is skipped, and its outputs are there."""

from __future__ import annotations

import asyncio
import sqlite3
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from keylane import Fatal, HandlerError, Output, ParallelConsumer, PeerError, Pipeline, Retries, Skip, UsageError
from keylane.consumer.start import Start
from keylane.delivery import SqliteStore
from keylane.delivery import exactly_once as module
from keylane.delivery.exactly_once import Once
from keylane.delivery.sqlite import SqliteTransaction
from keylane.delivery.stores import Identity
from keylane.offsets import OffsetMap
from keylane.options import Batch, ExactlyOnce, Processes
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T0 = ("t", 0)
KAFKA = {"bootstrap.servers": "nowhere:1", "group.id": "g"}


class Replays:
    """A log of ten records that is run as often as is asked for, with what was committed to Kafka forgotten."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(str(folder / "effects.db"))
        with sqlite3.connect(self.store.path) as connection:
            connection.execute("CREATE TABLE effects (offset INTEGER)")
        self.broker = FakeBroker([T0])
        self.broker.append(T0, [(b"%d" % (n % 3), b"v%d" % (n % 5)) for n in range(10)])
        self.outputs: list[Output] = []

    def pipeline(self, handler: Callable[..., Any], **options: Any) -> Pipeline:
        made: dict[str, Any] = {
            "kafka": KAFKA,
            "topics": ["t"],
            "offset_reset": "earliest",
            "retries": Retries(max_attempts=2, delay_ms=0, max_delay_ms=0),
        }
        once: dict[str, Any] = {
            name: options.pop(name) for name in ("store", "identity", "retention_ms") if name in options
        }
        delivery = ExactlyOnce(**({"store": self.store} | once))
        return Pipeline(handler=handler, **(made | {"delivery": delivery} | options))

    def run(self, handler: Callable[..., Any], *, base: int = 0, **options: Any) -> BaseException | None:
        once = self.once(handler, base, **options)
        try:
            with FakeEngine(once.pipeline, self.broker, ending_offsets={T0: 10}) as engine:
                assert engine.loop.ended.wait(30)
        finally:
            once.close()
        self.outputs = engine.producer.sent
        return engine.loop.failure

    def once(self, handler: Callable[..., Any], base: int = 0, **options: Any) -> Once:
        self.broker.committed[T0] = (base, "")
        once = Once(self.pipeline(handler, **options), "cluster", lambda topic: f"id of {topic}")
        once.check([Start("t", 0, 1, OffsetMap(base), 0, 10)])
        return once

    def identities(self) -> int:
        with sqlite3.connect(self.store.path) as connection:
            return int(connection.execute("SELECT count(*) FROM keylane_processed").fetchone()[0])

    def effects(self) -> list[int]:
        with sqlite3.connect(self.store.path) as connection:
            return [row[0] for row in connection.execute("SELECT offset FROM effects ORDER BY offset")]


@pytest.fixture
def replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replays:
    monkeypatch.setattr(module.House, "_purge", lambda _: None)  # else there would be nothing to replay
    return Replays(tmp_path)


def note(record: Any, context: Any) -> Output:
    context.transaction.execute("INSERT INTO effects VALUES (?)", (record.offset,))
    return Output("out", key=record.key, value=record.value, headers=[("h", b"1"), ("n", None)], timestamp_ms=5)


async def note_async(record: Any, context: Any) -> Output:
    await asyncio.sleep(0)
    return note(record, context)


def note_batch(records: Any, context: Any) -> list[Output]:
    return [note(record, context) for record in records]


async def note_batch_async(records: Any, context: Any) -> list[Output]:
    await asyncio.sleep(0)
    return note_batch(records, context)


@pytest.mark.parametrize(
    ("handler", "batch_size"), [(note, 1), (note_async, 1), (note_batch, 4), (note_batch_async, 4)]
)
def test_a_replay_repeats_no_effect_and_produces_the_same_outputs(
    replays: Replays, handler: Callable[..., Any], batch_size: int
) -> None:
    assert replays.run(handler, batch=Batch(batch_size) if batch_size > 1 else None) is None
    first = sorted(replays.outputs, key=attrgetter("key", "value"))
    assert len(first) == 10
    assert replays.run(handler, batch=Batch(batch_size) if batch_size > 1 else None) is None
    assert replays.effects() == list(range(10))
    assert sorted(replays.outputs, key=attrgetter("key", "value")) == first


def test_a_failed_attempt_leaves_nothing_and_the_next_one_has_a_new_transaction(replays: Replays) -> None:
    def handler(record: Any, context: Any) -> None:
        note(record, context)
        if context.attempt == 1:
            raise ValueError("once")

    assert replays.run(handler) is None
    assert replays.effects() == list(range(10))


def test_a_record_that_is_skipped_has_no_effect_and_no_identity(replays: Replays) -> None:
    def refuses(record: Any, context: Any) -> None:
        note(record, context)
        raise Fatal("not this one")

    assert replays.run(refuses, on_exhausted=Skip()) is None
    assert replays.effects() == []
    assert replays.run(note) is None
    assert replays.effects() == list(range(10)), "a replay tries it again"


def test_one_record_of_a_batch_that_fails_takes_the_others_along_and_they_run_alone(replays: Replays) -> None:
    sizes = []

    def handler(records: Any, context: Any) -> list[Any]:
        sizes.append(len(records))
        note_batch(records, context)
        return [Fatal("five") if record.offset == 5 else None for record in records]

    assert replays.run(handler, batch=Batch(10), ordering="unordered", on_exhausted=Skip()) is None
    assert replays.effects() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert sizes == [10] + [1] * 10


@pytest.mark.parametrize("how", ["commit", "swallowed"])
def test_a_handler_that_ends_the_transaction_fails(replays: Replays, how: str) -> None:
    def handler(_record: Any, context: Any) -> None:
        if how == "commit":
            context.transaction.commit()
        else:
            context.transaction.rollback()

    failure = replays.run(handler)
    assert isinstance(failure, HandlerError)
    assert "the handler ended context.transaction" in str(failure)


def test_a_wrong_return_value_commits_nothing(replays: Replays) -> None:
    def handler(record: Any, context: Any) -> str:
        note(record, context)
        return "done"

    assert isinstance(replays.run(handler), HandlerError)
    assert replays.effects() == []


@pytest.mark.parametrize("batch", [None, Batch(10)])
def test_a_key_of_the_users_makes_the_same_event_happen_once(replays: Replays, batch: Batch | None) -> None:
    handler = note if batch is None else note_batch
    assert replays.run(handler, identity=lambda record: record.value, batch=batch) is None
    assert len(replays.effects()) == 5, "v0 to v4, each produced twice"
    failure = replays.run(note, identity=lambda _: "")
    assert isinstance(failure, HandlerError)
    assert "return a str or bytes that is not empty" in str(failure)


def test_a_key_of_the_users_is_kept_for_its_retention_and_no_longer(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    assert replays.run(note, identity=lambda record: record.value) is None
    assert replays.identities() == 5, "the group has committed all of them"
    assert replays.run(note, identity=lambda record: record.value, retention_ms=1) is None
    assert replays.identities() == 0
    assert len(replays.effects()) == 5


def test_what_is_committed_is_purged_and_a_start_below_it_is_refused(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    assert replays.run(note) is None
    assert replays.identities() == 0
    with pytest.raises(PeerError, match=r"starts t-0 at offset 3, and what was processed below 10 is purged"):
        replays.run(note, base=3)
    once = Once(replays.pipeline(note), "cluster", lambda _: "another topic of that name")
    once.check([Start("t", 0, 1, OffsetMap(0), 0, 10)])
    once.close()


def test_what_a_killed_member_had_committed_is_purged_by_whoever_follows(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    with pytest.MonkeyPatch.context() as killed:  # a process that is killed does not come to this
        killed.setattr(module.House, "_purge", lambda _: True)
        assert replays.run(note) is None
    assert replays.identities() == 10
    assert replays.run(note, base=10) is None, "it starts behind all of them, and commits nothing"
    assert replays.identities() == 0


def test_what_others_committed_is_purged_at_the_end(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    pipeline = replays.pipeline(note)
    ids, asked = [], []

    def topic_id(topic: str) -> str:
        ids.append(topic)
        return "id"

    def group_committed() -> dict[tuple[str, int], int]:
        asked.append(len(ids))
        return {T0: 6}

    killed = Once(pipeline, "cluster", topic_id)
    killed.identities.know("t", "id")
    opened = replays.store.open()
    with opened.transaction() as transaction:
        for offset in range(8):
            assert transaction.claim(Identity(killed.identities.scope("t"), 0, offset)) is None
    opened.close()
    Once(pipeline, "cluster", topic_id, group_committed).close()
    assert replays.identities() == 2, "those at and above the committed offset may be asked for again"
    assert (asked, ids) == ([0], ["t"])


def test_an_end_without_a_broker_purges_what_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replays = Replays(tmp_path)

    def group_committed() -> dict[tuple[str, int], int]:
        raise PeerError("no broker answered")

    once = Once(replays.pipeline(note), "cluster", str, group_committed)
    once.check([Start("t", 0, 1, OffsetMap(3), 0, 10)])
    with replays.store.open().transaction() as transaction:
        assert transaction.purged_below(once.identities.scope("t"), 0) == 0
    once.close()
    with replays.store.open().transaction() as transaction:
        assert transaction.purged_below(once.identities.scope("t"), 0) == 3
    assert "others committed are not purged now: no broker answered" in caplog.text


def test_the_last_commit_is_purged_though_no_other_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PURGE_EVERY_S", 0.5)  # more than it takes to the only commit
    replays = Replays(tmp_path)
    with FakeEngine((once := replays.once(note)).pipeline, replays.broker):
        until(lambda: len(replays.effects()) == 10 and replays.identities() == 0, "purged while it runs")
    once.close()


def test_a_purge_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PURGE_EVERY_S", 0.05)
    tried = []

    def purge(self: Any, *arguments: Any) -> None:
        tried.append(arguments)
        if len(tried) == 1:
            raise sqlite3.OperationalError("not now")

    monkeypatch.setattr(SqliteTransaction, "purge", purge)
    once = Replays(tmp_path).once(note)
    until(lambda: len(tried) == 2, "a second attempt")
    assert tried[0] == tried[1]
    once.close()


def test_a_store_that_does_not_answer_is_named(replays: Replays, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PeerError, match="SqliteStore does not answer"):
        replays.run(note, delivery=ExactlyOnce(str(tmp_path / "file" / "x.db")))


def test_the_users_on_commit_and_resource_are_as_without(replays: Replays) -> None:
    told: list[dict[Any, int]] = []
    seen = []

    def handler(record: Any, context: Any) -> None:
        seen.append(context.resource)
        note(record, context)

    class Resource:
        def __enter__(self) -> str:
            return "mine"

        def __exit__(self, *_: object) -> None:
            pass

    assert replays.run(handler, resource=Resource, on_commit=lambda offsets, _: told.append(offsets)) is None
    assert seen == ["mine"] * 10
    assert told[-1] == {T0: 10}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"store": None}, "ExactlyOnce.store is a value of type NoneType: give the path"),
        ({"store": ""}, "store='': give the path"),
        ({"delivery": "exactly_once"}, "ExactlyOnce\\(store\\)"),
        ({"workers": Processes()}, "a database transaction is open in the process that commits it"),
        ({"batch": Batch(2), "retries": Retries(max_attempts=1)}, "give max_attempts of at least 2"),
        ({"identity": 5}, "identity=5: give a function"),
        ({"retention_ms": 0}, "ExactlyOnce.retention_ms=0"),
    ],
)
def test_what_cannot_hold_is_refused(replays: Replays, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        replays.pipeline(note, **options)


def test_a_stream_is_refused(replays: Replays) -> None:
    with pytest.raises(UsageError, match="read the results from the database"):
        ParallelConsumer(replays.pipeline(note)).stream()
