"""Exactly once on SQLite and a broker in memory: what is replayed is skipped, and its outputs are there."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from keylane import (
    Context,
    FailedAttempt,
    Fatal,
    HandlerError,
    Output,
    ParallelConsumer,
    PeerError,
    Pipeline,
    Record,
    Retries,
    Skip,
    Throttled,
    UsageError,
)
from keylane.consumer.start import Start
from keylane.consumer.work import Work, WorkRecord, with_reasons
from keylane.delivery import SqliteStore
from keylane.delivery import exactly_once as module
from keylane.delivery.exactly_once import Once
from keylane.delivery.positions import map_of
from keylane.delivery.sqlite import SqliteTransaction
from keylane.delivery.stores import Identity, Position
from keylane.errors import StoreError
from keylane.offsets import OffsetMap, encode
from keylane.options import Batch, ExactlyOnce, Processes, Threads
from kit.fakes import FakeBroker, FakeEngine
from kit.stage import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

T0 = ("t", 0)
ONCE = ("store", "identity", "retention_ms", "scope", "unseen_commits")
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
        once: dict[str, Any] = {name: options.pop(name) for name in ONCE if name in options}
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
        self.broker.before_commit = once.before_commit
        return once

    def identities(self) -> int:
        with sqlite3.connect(self.store.path) as connection:
            purged = "SELECT coalesce(max(below), 0) FROM keylane_purged"  # below it samples stay
            select = f"SELECT count(*) FROM keylane_processed WHERE at < 0 OR at >= ({purged})"
            return int(connection.execute(select).fetchone()[0])

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


@pytest.mark.parametrize("is_async", [False, True])
def test_a_unit_of_work_around_it_that_fails_at_its_end_takes_the_effects_back(
    replays: Replays, is_async: bool
) -> None:
    ends: list[int] = []

    @contextmanager
    def around(record: Record) -> Iterator[None]:
        yield
        ends.append(record.offset)
        if ends.count(record.offset) == 1:
            raise ConnectionError("its commit failed")

    handler = note_async if is_async else note
    assert replays.run(handler, around=around) is None
    assert replays.effects() == list(range(10))
    assert sorted(ends) == sorted([*range(10), *range(10)])
    assert len(replays.outputs) == 10


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


def test_one_record_of_a_batch_that_is_throttled_takes_the_others_along_and_none_uses_up_an_attempt(
    replays: Replays,
) -> None:
    told: list[FailedAttempt] = []
    often = []

    def handler(records: Any, context: Any) -> list[Any]:
        note_batch(records, context)
        often.append(len(records))
        return [Throttled(1) if record.offset == 5 and len(often) <= 4 else None for record in records]

    options: dict[str, Any] = {
        "batch": Batch(10),
        "ordering": "unordered",
        "on_exhausted": Skip(),
        "on_failure": told.append,
    }
    assert replays.run(handler, **options) is None
    assert replays.effects() == list(range(10))
    assert {(one.outcome, one.attempt) for one in told} == {("throttled", 1)}
    assert len(told) >= 10, "all of the batch waited"


@pytest.mark.parametrize(("handler", "batch"), [(note, None), (note_async, None), (note_batch, Batch(4))])
def test_what_was_processed_before_is_not_too_late_when_it_comes_again(
    replays: Replays, handler: Callable[..., Any], batch: Batch | None
) -> None:
    assert replays.run(handler, batch=batch, on_exhausted=Skip(), expires_ms=lambda _: 1e15) is None
    first = sorted(replays.outputs, key=attrgetter("key", "value"))
    assert replays.run(handler, batch=batch, on_exhausted=Skip(), expires_ms=lambda _: 0.0) is None
    assert sorted(replays.outputs, key=attrgetter("key", "value")) == first
    assert replays.effects() == list(range(10))


def test_of_a_batch_what_is_too_late_has_no_effect_and_the_others_have_theirs(replays: Replays) -> None:
    def until(record: Any) -> float:
        return 0.0 if record.offset in (3, 4) else 1e15

    assert replays.run(note_batch, batch=Batch(4), on_exhausted=Skip(), expires_ms=until) is None
    assert replays.effects() == [0, 1, 2, 5, 6, 7, 8, 9]


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
            assert not transaction.claim_all({Identity(killed.identities.scope("t"), 0, offset): None})
        transaction.note_position(killed.identities.scope("t"), 0, Position(6))
    opened.close()
    Once(pipeline, "cluster", topic_id, group_committed).close()
    assert replays.identities() == 2, "those at and above the committed offset may be asked for again"
    assert (asked, ids) == ([0], ["t"])


def test_an_end_without_a_broker_purges_what_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replays = Replays(tmp_path)

    def group_committed() -> dict[tuple[str, int], int]:
        raise PeerError("no broker answered")

    once = Once(replays.pipeline(note, unseen_commits="accept"), "cluster", str, group_committed)
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


# --- a log, a store or a cluster that is another one ---


def change_records(replays: Replays, offsets: range) -> None:
    """As after the broker's folder was restored, and producers went on."""
    log = replays.broker.logs[T0]
    log[offsets.start :] = []
    replays.broker.append(T0, [(b"another", b"%d" % offset) for offset in offsets])


@pytest.mark.parametrize(
    ("handler", "batch"), [(note, None), (note_async, None), (note_batch, Batch(4)), (note_batch_async, Batch(4))]
)
def test_another_record_at_the_same_place_ends_the_run(
    replays: Replays, handler: Callable[..., Any], batch: Batch | None
) -> None:
    assert replays.run(handler, batch=batch) is None
    change_records(replays, range(6, 10))
    failure = replays.run(handler, batch=batch, on_exhausted=Skip())
    assert isinstance(failure, HandlerError)
    assert isinstance(failure.__cause__, StoreError)
    assert "another record at partition 0, offset " in str(failure)
    assert "keylane store forget" in str(failure)
    assert replays.effects() == list(range(10))


def test_places_without_a_checksum_are_those_of_before_and_count(replays: Replays) -> None:
    assert replays.run(note) is None
    with sqlite3.connect(replays.store.path) as connection:
        connection.execute("UPDATE keylane_processed SET checksum = NULL")
    change_records(replays, range(6, 10))
    assert replays.run(note) is None
    assert replays.effects() == list(range(10))


def test_tables_of_before_there_were_checksums_and_epochs_go_on(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    with sqlite3.connect(replays.store.path) as connection:
        connection.execute(
            "CREATE TABLE keylane_processed (scope TEXT NOT NULL, part INTEGER NOT NULL, at INTEGER NOT NULL, "
            "key TEXT NOT NULL, done_ms INTEGER NOT NULL, outputs BLOB, PRIMARY KEY (scope, part, at, key)) "
            "WITHOUT ROWID"
        )
        connection.execute(
            "CREATE TABLE keylane_purged (scope TEXT, part INTEGER, below INTEGER, PRIMARY KEY (scope, part))"
        )
        connection.execute("INSERT INTO keylane_processed VALUES ('cluster/g/t/id of t', 0, 4, '', 1, NULL)")
        connection.execute("INSERT INTO keylane_purged VALUES ('cluster/g/t/id of t', 0, 3)")
        connection.execute(
            "CREATE TABLE keylane_positions (scope TEXT, part INTEGER, base INTEGER, offset_map TEXT, "
            "PRIMARY KEY (scope, part))"
        )
        connection.execute("INSERT INTO keylane_positions VALUES ('cluster/g/t/id of t', 0, 3, '')")
    assert replays.run(note, base=3) is None
    assert replays.effects() == [3, 5, 6, 7, 8, 9]


def empty(replays: Replays) -> None:
    with sqlite3.connect(replays.store.path) as connection:
        for table in ("effects", "keylane_processed", "keylane_purged", "keylane_positions"):
            connection.execute(f"DELETE FROM {table}")


def test_a_store_that_was_emptied_is_refused_and_both_ways_out_hold(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    assert replays.run(note) is None
    empty(replays)
    with pytest.raises(StoreError, match=r"has 10 offsets of t-0 complete, from 0 on, that this store has not seen"):
        replays.once(note, base=10)
    assert replays.effects() == []
    once = replays.once(note, base=10, unseen_commits="rewind")
    (start,) = once.check([Start("t", 0, 1, OffsetMap(10), 0, 10)])
    assert start.offsets == OffsetMap(0)
    once.close()
    empty(replays)
    once = replays.once(note, base=10, unseen_commits="accept")
    once.close()
    replays.once(note, base=10).close()  # what was accepted once is known


def test_a_group_that_has_read_what_retention_took_is_refused_by_a_store_that_knows_nothing_of_it(
    tmp_path: Path,
) -> None:
    """It is another database, or an emptied one. Without a leader epoch the offset may be an operator's."""
    replays = Replays(tmp_path)

    def check(start: Start, group: str = "g", **options: Any) -> Start:
        once = Once(replays.pipeline(note, kafka=KAFKA | {"group.id": group}, **options), "cluster", lambda _: "id")
        try:
            (checked,) = once.check([start])
        finally:
            once.close()
        return checked

    at_the_start = Start("t", 0, 1, OffsetMap(10), 10, 10, leader_epoch=3)
    with pytest.raises(StoreError, match="has 10 offsets of t-0 complete, from 0 on, that this store has not seen"):
        check(at_the_start)
    assert check(at_the_start, "rewinds", unseen_commits="rewind").offsets == OffsetMap(10)
    assert check(at_the_start, unseen_commits="accept") == check(at_the_start) == at_the_start
    assert check(replace(at_the_start, is_new=True), "new") == replace(at_the_start, is_new=True)
    assert check(replace(at_the_start, leader_epoch=-1), "set").leader_epoch == -1


def test_a_store_that_was_restored_is_refused_and_runs_what_it_has_not(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    backup = tmp_path / "backup"
    log, replays.broker.logs[T0] = replays.broker.logs[T0], replays.broker.logs[T0][:6]
    once = replays.once(note)
    with FakeEngine(once.pipeline, replays.broker, ending_offsets={T0: 6}) as engine:
        assert engine.loop.ended.wait(30)
    once.close()
    shutil.copy(replays.store.path, backup)
    replays.broker.logs[T0] = log
    assert replays.run(note, base=6) is None
    for file in tmp_path.glob("effects.db*"):
        file.unlink()
    shutil.copy(backup, replays.store.path)
    with pytest.raises(StoreError, match=r"has 4 offsets of t-0 complete, from 6 on, that this store has not seen"):
        replays.once(note, base=10)
    (start,) = replays.once(note, base=6).check([Start("t", 0, 1, OffsetMap(6), 0, 10)])
    assert start.offsets.base == 6
    assert replays.run(note, base=6, unseen_commits="rewind") is None
    assert replays.effects() == list(range(10))


def test_a_group_whose_commits_are_gone_does_not_pass_over_what_the_store_has_not(tmp_path: Path) -> None:
    """They expired, or did not come along with a restored log, and offset_reset is "latest"."""
    replays = Replays(tmp_path)
    once = replays.once(note)
    once.before_commit([Commit(T0, 4)])
    once.close()
    at_the_end = Start("t", 0, 1, OffsetMap(10), 0, 10, is_new=True)
    once = Once(replays.pipeline(note), "cluster", lambda topic: f"id of {topic}")
    with pytest.raises(StoreError, match="no commit for t-0, and would begin at 10: 6 offsets before that, from 4 on"):
        once.check([at_the_end])
    assert once.check([replace(at_the_end, is_sought=True)])[0].offsets.base == 10, "somebody wants that"
    once.close()


def test_what_is_complete_above_the_committed_offset_counts_as_well(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    once = replays.once(note)
    once.before_commit([Commit(T0, 2, encode(OffsetMap(2, [2, 5], 7)))])
    once.check([Start("t", 0, 1, OffsetMap(2, [2, 5], 7), 0, 10)])
    with pytest.raises(StoreError, match="has 1 offsets of t-0 complete, from 5 on"):
        once.check([Start("t", 0, 1, OffsetMap(2, [2], 7), 0, 10)])
    once.close()


class Commit(NamedTuple):
    name: tuple[str, int]
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def test_a_store_that_goes_back_under_a_member_is_noticed_before_the_next_commit(tmp_path: Path) -> None:
    """A fail-over to a replica that was behind: what the group has not committed must not be committed."""
    replays = Replays(tmp_path)
    once = replays.once(note)
    once.before_commit([Commit(T0, 0)])
    call(once, replays, range(4))
    with sqlite3.connect(replays.store.path) as connection:
        connection.execute("DELETE FROM keylane_processed WHERE at = 2")
    with pytest.raises(StoreError, match="has lost 1 of 4 records that were processed, from offset 0 on, of t-0"):
        once.before_commit([Commit(T0, 4)])
    with sqlite3.connect(replays.store.path) as connection:
        connection.execute("DELETE FROM keylane_positions")
    with pytest.raises(StoreError, match="has lost where the group was with partition 0"):
        once.before_commit([Commit(T0, 4)])
    once.close()


@pytest.mark.parametrize("handler", [note, note_async])
def test_a_file_that_is_replaced_under_a_member_ends_it(tmp_path: Path, handler: Callable[..., Any]) -> None:
    """A restore beside it: what is written to the file that was is in none."""
    replays = Replays(tmp_path)
    store, copy = tmp_path / "effects.db", tmp_path / "copy.db"

    def replacing(record: Any) -> None:
        if record.offset == 5:
            for file in tmp_path.glob("effects.db*"):
                file.unlink()
            shutil.copy(copy, store)

    def sync(record: Any, context: Any) -> None:
        replacing(record)
        note(record, context)

    async def coroutine(record: Any, context: Any) -> None:
        replacing(record)
        await note_async(record, context)

    with sqlite3.connect(store) as connection:
        connection.execute("VACUUM INTO ?", (str(copy),))
    made = sync if handler is note else coroutine
    failure = replays.run(made, max_concurrency=1)
    assert "effects.db was replaced or removed under this process" in str(failure)
    assert replays.effects() == []
    assert replays.run(note) is None
    assert replays.effects() == list(range(10))


@pytest.mark.parametrize("rule", ["error", "rewind"])
def test_a_store_of_before_the_log_was_cut_has_not_seen_the_records_that_are_there_now(
    tmp_path: Path, rule: Literal["error", "rewind"]
) -> None:
    """It has seen as many, at the same offsets."""
    replays = Replays(tmp_path)
    asked: list[tuple[OffsetMap, int]] = []

    def changes(starts: Sequence[Start]) -> dict[tuple[str, int], int | None]:
        asked.extend((one.offsets, one.leader_epoch) for one in starts)
        return {T0: 6}

    def once(*, cut: bool) -> Once:
        pipeline = replays.pipeline(note, unseen_commits=rule)
        return Once(pipeline, "cluster", lambda topic: f"id of {topic}", changes=changes if cut else lambda _: {})

    before = once(cut=False)
    before.check([Start("t", 0, 1, OffsetMap(0), 0, 10)])
    call(before, replays, range(8))
    before.before_commit([Commit(T0, 5, encode(OffsetMap(5, [5], 8)), 1)])
    before.close()
    change_records(replays, range(6, 10))
    of_now = Start("t", 0, 1, OffsetMap(5, [5], 8), 0, 10, leader_epoch=2)
    after = once(cut=True)
    if rule == "rewind":
        (start,) = after.check([of_now])
        assert start.offsets == OffsetMap(5)
    else:
        with pytest.raises(StoreError, match="has 3 offsets of t-0 complete, from 6 on, that this store has not seen"):
            after.check([of_now])
    assert asked == [(OffsetMap(5, [5], 8), 1)]
    after.close()


def test_a_store_that_is_ahead_of_its_group_forgets_what_was_cut(tmp_path: Path) -> None:
    """The commit that it was told of never came to the broker."""
    replays = Replays(tmp_path)
    before = replays.once(note)
    before.before_commit([Commit(T0, 5, encode(OffsetMap(5, [5], 8)), 1)])
    before.close()
    after = Once(replays.pipeline(note), "cluster", lambda topic: f"id of {topic}", changes=lambda _: {T0: 6})
    after.check([Start("t", 0, 1, OffsetMap(4), 0, 6, leader_epoch=1)])
    after.close()
    with sqlite3.connect(replays.store.path) as connection:
        (found,) = connection.execute("SELECT base, offset_map FROM keylane_positions").fetchall()
    assert map_of(Position(*found)) == OffsetMap(5)


def test_what_a_later_leader_has_replaces_what_an_earlier_one_had(tmp_path: Path) -> None:
    """In the store, where a member of before has nothing to complain of."""
    replays = Replays(tmp_path)
    old = replays.once(note)
    old.before_commit([Commit(T0, 2, encode(OffsetMap(2, [2], 7)), 1)])
    new = Once(replays.pipeline(note), "cluster", lambda topic: f"id of {topic}")
    new.check([Start("t", 0, 1, OffsetMap(2), 0, 10, leader_epoch=1)])
    new.before_commit([Commit(T0, 3, leader_epoch=2)])
    with sqlite3.connect(replays.store.path) as connection:
        found = connection.execute("SELECT base, offset_map, leader_epoch FROM keylane_positions").fetchall()
    assert [(map_of(Position(*one)), one[2]) for one in found] == [(OffsetMap(3), 2)]
    old._house._look_back()
    for one in (old, new):
        one.close()


@pytest.mark.parametrize("by_key", [False, True], ids=["places", "keys"])
def test_what_a_member_processes_before_it_hears_that_its_store_was_emptied_says_nothing_of_the_rest(
    tmp_path: Path, by_key: bool
) -> None:
    """The broker has applied the commit that the store was told of."""
    replays = Replays(tmp_path)
    options: dict[str, Any] = {"identity": lambda record: b"%d" % record.offset} if by_key else {}
    once = replays.once(note, **options)
    call(once, replays, range(4))
    once.before_commit([Commit(T0, 4)])
    empty(replays)
    call(once, replays, range(5, 6))
    with pytest.raises(StoreError, match="has lost"):
        once.before_commit([Commit(T0, 4, encode(OffsetMap(4, [4], 5)))])
    once.close()
    with pytest.raises(StoreError, match="has 4 offsets of t-0 complete, from 0 on, that this store has not seen"):
        replays.once(note, base=4, **options)


def test_a_member_that_has_nothing_to_do_hears_of_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PURGE_EVERY_S", 0.05)
    replays, failures = Replays(tmp_path), list[BaseException]()
    once = Once(replays.pipeline(note), "cluster", str, fail=failures.append)
    once.check([Start("t", 0, 1, OffsetMap(0), 0, 10)])
    once.before_commit([Commit(T0, 5)])
    empty(replays)
    until(lambda: len(failures) > 0, "it is told")
    assert isinstance(failures[0], StoreError)
    once.close()


def test_nothing_is_purged_that_the_store_has_not_seen_committed(tmp_path: Path) -> None:
    """The group has, and the store went back in time since then: what it purged would count as processed."""
    replays = Replays(tmp_path)
    once = Once(replays.pipeline(note), "cluster", lambda topic: f"id of {topic}", lambda: {T0: 8})
    once.check([Start("t", 0, 1, OffsetMap(0), 0, 10)])
    once.before_commit([Commit(T0, 5)])
    once.close()
    (start,) = replays.once(note, base=5).check([Start("t", 0, 1, OffsetMap(5), 0, 10)])
    assert start.offsets.base == 5
    with pytest.raises(StoreError, match="has 3 offsets of t-0 complete, from 5 on, that this store has not seen"):
        replays.once(note, base=8)


def test_what_another_member_has_purged_is_not_lost(tmp_path: Path) -> None:
    """This one was slow to hear that the partition is another's; the coordinator refuses its commit."""
    replays = Replays(tmp_path)
    once = replays.once(note)
    call(once, replays, range(4))
    opened = replays.store.open()
    with opened.transaction() as transaction:
        transaction.purge(once.identities.scope("t"), 0, 3)
    opened.close()
    once.before_commit([Commit(T0, 4)])
    once.close()


def call(once: Once, replays: Replays, offsets: range) -> None:
    """Have the handler run, as workers do."""
    assert once.pipeline.resource is not None
    with once.pipeline.resource() as resource:
        for offset in offsets:
            handler: Any = once.pipeline.handler
            handler(Record(replays.broker.logs[T0][offset]), Context(resource))


def test_a_group_that_is_known_under_another_cluster_is_refused(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    assert replays.run(note) is None
    for options in ({}, {"unseen_commits": "accept"}):
        once = Once(replays.pipeline(note, **options), "mirror", lambda topic: f"id of {topic}")
        start = Start("t", 0, 1, OffsetMap(0), 0, 10, is_new=True)
        if options:
            assert once.check([start]) == [start]
        else:
            with pytest.raises(StoreError, match=r"topic 't' of cluster 'cluster', and this is cluster 'mirror'"):
                once.check([start])
        once.close()
    replays.once(note, base=10).close()


def test_a_topic_that_is_made_anew_is_of_the_same_cluster(tmp_path: Path) -> None:
    """Ids are in Base64, and one in four has a / in it."""
    replays = Replays(tmp_path)
    assert replays.run(note) is None
    once = Once(replays.pipeline(note), "cluster", lambda _: "TE/+hfIfRo+Q4iBvs7dEvw")
    start = Start("t", 0, 1, OffsetMap(0), 0, 10, is_new=True)
    assert once.check([start]) == [start]
    once.close()


def test_a_store_of_keys_tells_as_much(tmp_path: Path) -> None:
    """Of the group, the cluster and its own past."""
    replays = Replays(tmp_path)
    options: dict[str, Any] = {"identity": lambda record: b"%d" % record.offset}
    once = replays.once(note, **options)
    once.before_commit([Commit(T0, 0)])
    call(once, replays, range(4))
    once.before_commit([Commit(T0, 2)])
    call(once, replays, range(4, 8))
    with sqlite3.connect(replays.store.path) as connection:
        connection.execute("DELETE FROM keylane_processed WHERE key = '36'")
    with pytest.raises(StoreError, match="has lost 1 of 4 keys that were processed"):
        once.before_commit([Commit(T0, 8)])
    once.close()
    with pytest.raises(StoreError, match="has 6 offsets of t-0 complete, from 2 on, that this store has not seen"):
        replays.once(note, base=8, **options)
    mirror = Once(replays.pipeline(note, **options), "mirror", str)
    with pytest.raises(StoreError, match="of cluster 'cluster', and this is cluster 'mirror'"):
        mirror.check([Start("t", 0, 1, OffsetMap(0), 0, 10, is_new=True)])
    mirror.close()
    with sqlite3.connect(replays.store.path) as connection:  # as a version left it that noted no positions
        connection.execute("DELETE FROM keylane_positions")
        connection.execute("DELETE FROM keylane_purged")
        connection.execute("UPDATE keylane_processed SET checksum = NULL")
    replays.once(note, base=8, **options).close()


def test_a_scope_holds_over_clusters(tmp_path: Path) -> None:
    replays = Replays(tmp_path)
    options: dict[str, Any] = {"scope": "shop", "identity": lambda record: b"%d" % record.offset}
    assert replays.run(note, **options) is None
    for scope, effects in (("shop", 10), ("another", 20)):
        mirror = Once(replays.pipeline(note, **(options | {"scope": scope})), "mirror", str)
        mirror.check([Start("t", 0, 1, OffsetMap(0), 0, 10, is_new=True)])
        call(mirror, replays, range(10))
        mirror.close()
        assert len(replays.effects()) == effects


# --- when the transaction begins ---


def test_a_slow_call_before_the_transaction_holds_nobody(replays: Replays) -> None:
    """All of them are in it at once, on the store that has one writer."""
    together = threading.Barrier(10)

    def handler(record: Any, context: Any) -> None:
        together.wait(30)
        note(record, context)

    assert replays.run(handler, ordering="unordered", workers=Threads(10), max_concurrency=10) is None
    assert replays.effects() == list(range(10))


def test_a_slow_call_of_a_coroutine_holds_nobody(replays: Replays) -> None:
    begun: list[int] = []
    all_have_begun = asyncio.Event()

    async def handler(record: Any, context: Any) -> None:
        begun.append(record.offset)
        if len(begun) == 10:
            all_have_begun.set()
        await all_have_begun.wait()
        note(record, context)

    assert replays.run(handler, ordering="unordered", max_concurrency=10) is None
    assert replays.effects() == list(range(10))
    assert len(begun) == 10, "each is called once"


def test_a_handler_that_needs_no_transaction_is_noted_all_the_same(replays: Replays) -> None:
    called = []
    for _ in range(2):
        assert replays.run(lambda record: called.append(record.offset)) is None
    assert sorted(called) == list(range(10))


@pytest.mark.parametrize("swallows", [False, True])
def test_a_claim_that_was_lost_meanwhile_runs_no_second_effect(replays: Replays, swallows: bool) -> None:
    """A member that was slow, and its successor, which has processed the record in the meantime."""

    def slow(record: Any, context: Any) -> Output | None:
        if len(other) < 1:
            other.append(True)
            call(successor, replays, range(10))
        try:
            return note(record, context)
        except BaseException:
            if not swallows:
                raise
            return None

    other: list[bool] = []
    successor = replays.once(note)
    assert replays.run(slow) is None
    successor.close()
    assert replays.effects() == list(range(10))
    assert len(replays.outputs) == 10, "what was kept is produced"


def test_of_a_batch_that_lost_a_claim_the_others_run(replays: Replays) -> None:
    sizes: list[int] = []

    def handler(records: Any, context: Any) -> None:
        if not sizes:
            call(successor, replays, range(3))
        sizes.append(len(records))
        note_batch(records, context)

    successor = replays.once(note)
    assert replays.run(handler, batch=Batch(10), ordering="unordered") is None
    successor.close()
    assert replays.effects() == list(range(10))
    assert sizes == [10, 7]


def test_a_coroutine_that_waits_inside_its_transaction_is_let_through_one_after_another(
    replays: Replays, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(record: Any, context: Any) -> None:
        note(record, context)
        await asyncio.sleep(0.002)
        context.transaction.execute("SELECT 1")

    assert replays.run(handler, ordering="unordered", max_concurrency=10) is None
    assert replays.effects() == list(range(10))
    assert "have it wait before it first uses context.transaction" in caplog.text


def test_a_handler_that_waits_for_a_connection_is_told(tmp_path: Path) -> None:
    """And one that runs and does not wait is not."""
    replays = Replays(tmp_path)
    once = replays.once(note)
    opened, handler = replays.store.open(), once.pipeline.handler
    thread = threading.Thread(target=handler, args=(Record(replays.broker.logs[T0][0]), Context()))
    assert once.pipeline.resource is not None
    with once.pipeline.resource():
        with opened.transaction():
            thread.start()
            until(lambda: once.places_that_wait() == {("t", 0, 0)}, "it waits for the transaction of another")
            runs = [WorkRecord("t", 0, offset, "running", 1, 5, None, 0, None) for offset in (0, 1)]
            shown = with_reasons(Work(in_hand=tuple(runs)), dict.fromkeys(once.places_that_wait(), "store"))
            assert [one.why for one in shown.in_hand] == ["store", "running"]
        thread.join()
    assert once.places_that_wait() == set()
    assert replays.effects() == [0]
    opened.close()
    once.close()
