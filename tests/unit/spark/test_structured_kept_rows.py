"""Rows exactly once on SQLite, a task at a time: what is handed on again, what is kept, and what is purged when."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import keylane as kl
from keylane.delivery import SqliteStore
from keylane.delivery.sqlite import OpenSqlite, SqliteTransaction
from keylane.errors import ProcessedError
from keylane.spark import CarryOver, parallel_map
from keylane.spark.structured import kept_rows, settled
from keylane.spark.structured.kept_rows import KeptOutputs, check_step
from keylane.spark.structured.plans import Plan
from keylane.spark.structured.settled import Settled
from keylane.spark.structured.told_lists import tell
from kit.row_bench import RETURNS, InATask, number_of, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from keylane.spark.structured.carry_over import TaskReport

COUNT = 12
OTHER = StructType([StructField("number", LongType()), StructField("said", StringType())])


class Tasks:
    """Tasks of a query one after another, on a SQLite file with a table of effects."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = str(folder / "effects.db")
        with closing(sqlite3.connect(self.store)) as database:
            database.execute("CREATE TABLE effects (number INTEGER)")
        self.calls: Counter[int] = Counter()
        self.properties: dict[str, str] = {}
        context = SimpleNamespace(getLocalProperty=self.properties.get, cpus=lambda: 1, partitionId=lambda: 0)
        for module in (kept_rows, settled):
            monkeypatch.setattr(module, "TaskContext", SimpleNamespace(get=lambda: context))
        self.is_at(0)

    def is_at(self, batch: int | None, *, run: str = "run 1", below: dict[str, dict[int, int]] | None = None) -> None:
        """The next task is of another process; its batch, the run of its query, and what `acknowledged` tells."""
        kept_rows._turns.clear()
        self.properties.clear()
        if batch is not None:
            self.properties |= {"sql.streaming.queryId": "q", "streaming.sql.batchId": f"{batch}"}
            self.properties["spark.jobGroup.id"] = run
        if below is not None:
            context = SimpleNamespace(
                setLocalProperty=self.properties.__setitem__, getLocalProperty=self.properties.get
            )
            session: Any = SimpleNamespace(sparkContext=context)
            Settled(below).tell(session)

    def step(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        names = ("identity", "retention_ms", "scope")
        once = {name: options.pop(name) for name in names if name in options}
        made: dict[str, Any] = {"retries": kl.Retries(max_attempts=2, delay_ms=0, max_delay_ms=0)}
        made["delivery"] = kl.ExactlyOnce(options.pop("store", self.store), **once)
        return parallel_map(function or self.insert, options.pop("returns", RETURNS), **made | options)

    def run(self, step: Any, rows: list[dict[str, Any]] | None = None) -> list[tuple[Any, ...]]:
        found = InATask().run(step, records(COUNT) if rows is None else rows)
        return sorted(tuple(one.values()) for one in found)

    def insert(self, row: Any, context: kl.Context) -> Any:
        """None, one or two rows."""
        number = number_of(row)
        self.calls[number] += 1
        context.transaction.execute("INSERT INTO effects VALUES (?)", (number,))
        return [(number, f"{kind} of {self.calls.total()}") for kind in ("first", "second")[: number % 3]]

    async def insert_async(self, row: Any, context: kl.Context) -> Any:
        await asyncio.sleep(0)
        return self.insert(row, context)

    def insert_all(self, rows: list[Any], context: kl.Context) -> list[Any]:
        return [self.insert(row, context) for row in rows]

    async def insert_all_async(self, rows: list[Any], context: kl.Context) -> list[Any]:
        await asyncio.sleep(0)
        return self.insert_all(rows, context)

    def effects(self) -> list[int]:
        return [number for (number,) in self.select("SELECT number FROM effects ORDER BY number")]

    def kept(self) -> int:
        """Beside the samples of what is purged."""
        select = "SELECT count(*) FROM keylane_processed LEFT JOIN keylane_purged USING (scope, part) "
        return int(self.select(f"{select} WHERE at < 0 OR at >= coalesce(below, 0)")[0][0])

    def select(self, text: str) -> list[Any]:
        with closing(sqlite3.connect(self.store)) as database:
            return database.execute(text).fetchall()


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tasks:
    return Tasks(tmp_path, monkeypatch)


@pytest.mark.parametrize("way", ["insert", "insert_async", "insert_all", "insert_all_async"])
def test_a_row_that_runs_again_has_the_same_rows_and_no_other_effect(tasks: Tasks, way: str) -> None:
    options: dict[str, Any] = {"batch": kl.Batch(5)} if "all" in way else {}
    first = tasks.run(tasks.step(getattr(tasks, way), **options))
    tasks.is_at(0, run="after a restart")
    step = tasks.step(getattr(tasks, way), **options)
    assert tasks.run(step) == first
    for number in range(COUNT):
        alone = [one for one in records(COUNT) if one["value"] == b"%d" % number]
        assert tasks.run(step, alone) == [one for one in first if one[0] == number]
    assert len(first) == sum(number % 3 for number in range(COUNT))
    assert tasks.effects() == list(range(COUNT))
    assert set(tasks.calls.values()) == {1}


def test_what_half_a_task_has_done_is_not_done_again(tasks: Tasks) -> None:
    step = tasks.step()
    first = tasks.run(step, records(COUNT)[:5])
    again = tasks.run(step)
    assert set(first) < set(again)
    assert tasks.effects() == list(range(COUNT))


def test_two_attempts_at_once_meet_and_the_second_gets_the_rows_of_the_first(tasks: Tasks) -> None:
    """As under speculation."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(row: Any, context: kl.Context) -> Any:
        begun.set()
        assert go_on.wait(30)
        return tasks.insert(row, context)

    step = tasks.step(slow)
    found: list[list[tuple[Any, ...]]] = []
    attempts = [threading.Thread(target=lambda: found.append(tasks.run(step))) for _ in range(2)]
    attempts[0].start()
    assert begun.wait(30)
    attempts[1].start()
    go_on.set()
    for one in attempts:
        one.join()
    assert found[0] == found[1]
    assert tasks.effects() == list(range(COUNT))


@pytest.mark.parametrize(
    ("rule", "becomes"),
    [
        ({}, None),
        ({"on_exhausted": kl.Skip()}, 0),
        ({"outcome": True}, 1),
    ],
)
def test_nothing_is_kept_of_a_row_that_failed_for_the_last_time(tasks: Tasks, rule: Any, becomes: int | None) -> None:
    def refuse(row: Any, context: kl.Context) -> Any:
        tasks.insert(row, context)
        raise ValueError("not this one")

    (three,) = [one for one in records(COUNT) if one["value"] == b"4"]
    if becomes is None:
        with pytest.raises(kl.HandlerError, match="in-0@1: failed after 2 attempts: ValueError: not this one"):
            tasks.run(tasks.step(refuse), [three])
    else:
        assert len(tasks.run(tasks.step(refuse, **rule), [three])) == becomes
    assert (tasks.effects(), tasks.kept()) == ([], 0)
    assert len(tasks.run(tasks.step(**rule), [three])) == 1, "a replay tries it again"
    assert tasks.effects() == [4]


@pytest.mark.parametrize("batch", [None, kl.Batch(4)])
def test_what_cannot_be_kept_is_not_committed(tasks: Tasks, batch: kl.Batch | None) -> None:
    def wrong(row: Any, context: kl.Context) -> Any:
        tasks.insert(row, context)
        return {4: ("no number", "told"), 5: (1, "told", "more")}.get(number_of(row), (number_of(row), "told"))

    def all_wrong(rows: list[Any], context: kl.Context) -> Any:
        return [wrong(row, context) for row in rows]

    step = tasks.step(wrong if batch is None else all_wrong, batch=batch, outcome=True)
    found = InATask().run(step, records(COUNT))
    said = sorted(one["error"] for one in found if one["error"])
    assert said == [
        "Fatal: the function returned 3 values, and returns= has number, told",
        "Fatal: the function returned a value of type str for the column number, which is int64",
    ]
    assert tasks.effects() == [number for number in range(COUNT) if number not in (4, 5)]


def test_a_row_of_a_batch_that_fails_takes_its_transaction_along_and_the_others_run_alone(tasks: Tasks) -> None:
    def one_fails(rows: list[Any], context: kl.Context) -> Any:
        made = tasks.insert_all(rows, context)
        return [ValueError("no") if number_of(row) == 4 else one for row, one in zip(rows, made, strict=True)]

    tasks.run(tasks.step(one_fails, batch=kl.Batch(COUNT), on_exhausted=kl.Skip()))
    assert tasks.effects() == [number for number in range(COUNT) if number != 4]
    assert tasks.kept() == COUNT - 1


def by_value(row: Any) -> bytes:
    return bytes(row.value)


@pytest.mark.parametrize("identity", [by_value, "value"])
@pytest.mark.parametrize("batch", [None, kl.Batch(2 * COUNT)])
def test_rows_with_a_key_that_was_processed_have_the_rows_of_the_first(tasks: Tasks, identity: Any, batch: Any) -> None:
    twice = records(COUNT) + [{**one, "offset": one["offset"] + COUNT} for one in records(COUNT)]
    step = tasks.step(tasks.insert if batch is None else tasks.insert_all, batch=batch, identity=identity)
    found = tasks.run(step, twice)
    assert tasks.effects() == list(range(COUNT))
    assert found[::2] == found[1::2]
    assert len(found) == 2 * sum(number % 3 for number in range(COUNT))


def test_a_key_that_is_none_is_refused_and_the_row_is_not_shown(tasks: Tasks) -> None:
    with pytest.raises(kl.HandlerError, match="identity returned an empty key for a row: return a str or bytes"):
        tasks.run(tasks.step(identity=lambda _: ""))


def test_a_row_of_a_batch_that_has_no_key_fails_alone(tasks: Tasks) -> None:
    def key(row: Any) -> str:
        return "" if number_of(row) == 4 else str(number_of(row))

    tasks.run(tasks.step(tasks.insert_all, batch=kl.Batch(COUNT), identity=key, on_exhausted=kl.Skip()))
    assert tasks.effects() == [number for number in range(COUNT) if number != 4]


# --- what must not go on ---


SAYS_OTHER_COLUMNS = (
    r"in-\d@\d: it was processed before, with the columns \(number int64, told string\), and returns= has "
    r"\(number int64, said string\)"
)


@pytest.mark.parametrize("rule", [{}, {"on_exhausted": kl.Skip()}, {"outcome": True}, {"batch": kl.Batch(4)}])
def test_other_columns_than_those_that_are_kept_fail_the_task_whatever_the_rule(tasks: Tasks, rule: Any) -> None:
    tasks.run(tasks.step())
    function = tasks.insert_all if "batch" in rule else tasks.insert
    with pytest.raises(kl.HandlerError, match=SAYS_OTHER_COLUMNS):
        tasks.run(tasks.step(function, returns=OTHER, **rule))
    assert tasks.effects() == list(range(COUNT))


def test_two_steps_of_a_query_need_scopes_and_have_them(tasks: Tasks) -> None:
    tasks.run(tasks.step())
    with pytest.raises(kl.HandlerError, match="another step of this query has processed it under the same name"):
        tasks.run(tasks.step())
    tasks.run(tasks.step(scope="second"))
    assert tasks.effects() == sorted([*range(COUNT)] * 2)


def test_what_a_pipeline_kept_is_no_row(tasks: Tasks) -> None:
    outputs = KeptOutputs(RETURNS, None)
    with pytest.raises(ProcessedError, match="what is kept of it are no rows"):
        outputs.again(b'[["t", null, null, [], null, null]]')
    assert outputs.again(outputs.kept([])) == []


# --- what is purged ---


def test_a_batch_purges_what_is_before_it_once_and_nothing_of_its_own(tasks: Tasks) -> None:
    """Each partition has three rows."""
    tasks.is_at(7, below={"in": {0: 0, 1: 0, 2: 0, 3: 0}})
    tasks.run(tasks.step())
    assert tasks.kept() == COUNT
    tasks.is_at(7, run="after a restart", below={"in": {0: 0, 1: 0, 2: 0, 3: 0}})
    tasks.run(tasks.step())
    assert tasks.kept() == COUNT
    tasks.is_at(8, below={"in": {0: 3, 1: 3, 2: 1, 3: 3}})  # of partition 2 a record is carried
    later = [{**one, "offset": one["offset"] + 3} for one in records(4)]
    tasks.run(tasks.step(), later)
    assert tasks.kept() == 2 + 4
    assert tasks.select("SELECT scope, part, below FROM keylane_purged WHERE scope = 'q/in' ORDER BY part") == [
        ("q/in", 0, 3), ("q/in", 1, 3), ("q/in", 2, 1), ("q/in", 3, 3)
    ]  # fmt: skip


def test_a_query_that_another_one_started_is_not_told_what_that_one_is_through_with(tasks: Tasks) -> None:
    """A thread's properties of Spark are those of the threads that it starts, too."""
    tasks.is_at(7, below={"in": dict.fromkeys(range(4), 3)})
    assert Settled.of_task() == Settled({"in": dict.fromkeys(range(4), 3)})
    tasks.properties["sql.streaming.queryId"] = "another"
    assert Settled.of_task() is None


@pytest.mark.parametrize("rule", [{}, {"on_exhausted": kl.Skip()}, {"outcome": True}])
def test_a_task_that_nobody_waits_for_any_more_changes_nothing(tasks: Tasks, rule: Any) -> None:
    """Of an earlier batch: frozen, while Spark had it run elsewhere and went on."""
    tasks.run(tasks.step())
    tasks.is_at(1, below={"in": dict.fromkeys(range(4), 3)})
    tasks.run(tasks.step(), [{**records(1)[0], "offset": 3}])
    tasks.is_at(0)
    with pytest.raises(kl.HandlerError, match=r"in-\d@\d: it was processed before, and the store has no outputs of it"):
        tasks.run(tasks.step(**rule))
    assert Counter(tasks.effects()) == Counter([*range(COUNT), 0])


@pytest.mark.parametrize("identity", [None, by_value])
def test_without_word_of_the_checkpoint_the_age_counts_and_never_for_the_batch_itself(
    tasks: Tasks, identity: Any
) -> None:
    options: dict[str, Any] = {"identity": identity, "retention_ms": 1}
    tasks.is_at(3)
    first = tasks.run(tasks.step(**options))
    time.sleep(0.01)
    tasks.is_at(3, run="long after")
    assert tasks.run(tasks.step(**options)) == first
    assert tasks.effects() == list(range(COUNT))
    tasks.is_at(4)
    time.sleep(0.01)
    tasks.run(tasks.step(**options), [{**records(1)[0], "offset": 9, "value": b"99"}])
    assert tasks.kept() == 1


def test_outside_of_a_stream_the_age_counts(tasks: Tasks) -> None:
    tasks.is_at(None)
    options: dict[str, Any] = {"scope": "a name", "retention_ms": 10_000}
    first = tasks.run(tasks.step(**options))
    assert tasks.run(tasks.step(**options)) == first
    with closing(sqlite3.connect(tasks.store)) as database, database:
        database.execute("UPDATE keylane_processed SET done_ms = done_ms - 20000 WHERE part = 1")
    tasks.run(tasks.step(**options))
    assert tasks.kept() == COUNT, "it is looked for ten times in the time, and not with each task"
    kept_rows._turns.clear()
    with closing(sqlite3.connect(tasks.store)) as database, database:
        database.execute("UPDATE keylane_purged SET below = 0")
    tasks.run(tasks.step(**options))
    assert Counter(tasks.effects()) == Counter([*range(COUNT), 1, 5, 9])


def test_a_process_asks_the_store_once_a_batch(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[SqliteStore] = []

    def open_it(store: SqliteStore) -> OpenSqlite:
        opened.append(store)
        return OpenSqlite(store)

    monkeypatch.setattr(SqliteStore, "open", open_it)
    step = tasks.step()
    for _ in range(3):
        tasks.run(step)
    assert len(opened) == 3 + 1, "each task for its function, and the first one for what is to purge"
    for number in range(kept_rows.TURNS_KNOWN):
        kept_rows._turns["other", str(number)] = 0
    tasks.is_at(1)
    tasks.run(step)
    assert len(kept_rows._turns) == 1


@pytest.mark.parametrize(
    ("carried", "below"), [([], {"t": {0: 10, 1: 7}}), ([("t", 0, 4), ("t", 0, 3), ("t", 1, 9)], {"t": {0: 3, 1: 7}})]
)
def test_what_is_settled_is_before_the_batch_and_before_all_that_is_carried(carried: Any, below: Any) -> None:
    plan = Plan("query", 2, {("t", 0): 10, ("t", 1): 7}, {("t", 0): 20, ("t", 1): 9})
    assert Settled.before(plan, carried).below == below


# --- what is refused ---


class NoOutputs:
    """A store of somebody's own that keeps identities alone."""

    def __init__(self, store: str) -> None:
        self._store = SqliteStore(store)

    def open(self) -> Any:
        opened = self._store.open()

        @contextmanager
        def transaction() -> Iterator[Any]:
            with opened.transaction() as begun:
                yield SimpleNamespace(claim_all=begun.claim_all, is_open=begun.is_open, purge=begun.purge)

        return SimpleNamespace(transaction=transaction, close=opened.close)


def test_a_store_that_cannot_keep_outputs_is_refused_by_name(tasks: Tasks) -> None:
    with pytest.raises(
        kl.UsageError,
        match="a transaction of NoOutputs has no count_keys, count_places, has_unchecked, keep_all, note_position, "
        "places, position, purge_before, purged_below, scopes: ",
    ):
        tasks.run(tasks.step(store=NoOutputs(tasks.store)))
    assert tasks.effects() == []
    with pytest.raises(kl.UsageError, match="NoOutputs has no open_async"):
        tasks.step(tasks.insert_async, store=NoOutputs(tasks.store))


def test_a_store_that_forgets_outputs_is_noticed(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteTransaction, "keep_all", lambda *_: None)
    tasks.run(tasks.step())
    with pytest.raises(kl.HandlerError, match="or a store that keeps nothing"):
        tasks.run(tasks.step())


def test_a_store_that_does_not_answer_is_named(tasks: Tasks, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(kl.PeerError, match="SqliteStore does not answer"):
        tasks.run(tasks.step(store=str(tmp_path / "file" / "x.db")))


RECORD = {"topic": "string", "partition": "int", "offset": "bigint"}


@pytest.mark.parametrize(
    ("once", "columns", "master", "says"),
    [
        ({}, {"topic": "string", "n": "int"}, "local[2]", "the frame has no column offset, partition, by which"),
        ({"identity": "order"}, RECORD, "local[2]", "the column order is not there: name one of strings"),
        ({"identity": "n"}, {"n": "int"}, "local[2]", "the column n is int: name one of strings or binary values"),
        ({}, RECORD, "local[2]", "a frame that is no stream has no checkpoint"),
        ({"scope": "a"}, RECORD, "spark://m:7077", "tasks on the cluster spark://m:7077 may be on several machines"),
        ({"scope": "a"}, RECORD, "local[2]", None),
        ({"scope": "a", "identity": "key"}, {"key": "binary"}, "local", None),
        ({"scope": "a", "identity": by_value}, {}, "local", None),
    ],
)
def test_what_a_frame_cannot_have_is_refused_when_the_step_is_applied(
    once: Any, columns: dict[str, str], master: str, says: str | None
) -> None:
    session = SimpleNamespace(
        conf=SimpleNamespace(get=lambda *_: master), sparkContext=SimpleNamespace(getLocalProperty=lambda _: None)
    )
    frame: Any = SimpleNamespace(
        columns=list(columns), dtypes=list(columns.items()), sparkSession=session, isStreaming=False
    )
    step = parallel_map(by_value, RETURNS, delivery=kl.ExactlyOnce("a.db", **once))
    if says is None:
        check_step(step, frame)
        return
    with pytest.raises(kl.UsageError) as error:
        step(frame)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": kl.Processes()}, "for more cores use lanes, or more tasks of Spark"),
        ({"batch": kl.Batch(2), "retries": kl.Retries(max_attempts=1)}, "give max_attempts of at least 2"),
    ],
)
def test_what_cannot_hold_is_refused(tasks: Tasks, options: Any, says: str) -> None:
    with pytest.raises(kl.UsageError, match=says):
        tasks.step(**options)


def test_a_task_of_no_stream_needs_a_scope(tasks: Tasks) -> None:
    tasks.is_at(None)
    with pytest.raises(kl.UsageError, match="this is no task of a stream: give scope="):
        tasks.run(tasks.step())


def test_what_fails_with_carry_over_is_carried_and_the_rest_is_kept(
    tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context: Any = SimpleNamespace(
        getLocalProperty=lambda name: tasks.properties.get(name),  # another dict for each batch
        setLocalProperty=lambda name, text: tasks.properties.update({name: text}),
        partitionId=lambda: 0,
    )
    monkeypatch.setattr("keylane.spark.structured.carry_over.TaskContext", SimpleNamespace(get=lambda: context))
    carry = CarryOver(str(tmp_path / "lists"))
    reports: list[TaskReport] = []
    monkeypatch.setattr(carry, "report", reports.append)
    tell(context, carry.folder, carry.id)

    def refuse(row: Any, context: kl.Context) -> Any:
        made = tasks.insert(row, context)
        if number_of(row) == 4:
            raise ValueError("busy")
        return made

    first = tasks.run(tasks.step(refuse, carry_over=carry))
    assert [[*one.carried] for one in reports] == [[("in", 0, 1)]]
    tasks.is_at(1, below={"in": {0: 1, 1: 3, 2: 3, 3: 3}})
    tell(context, carry.folder, carry.id)
    second = tasks.run(tasks.step(carry_over=carry), records(COUNT)[4:5])
    assert len(first + second) == sum(number % 3 for number in range(COUNT))
    assert tasks.effects() == list(range(COUNT))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_of_a_row_is_kept_though_its_attempts_fail_and_its_task_runs_again(
    tasks: Tasks, *, is_async: bool
) -> None:
    paid: Counter[int] = Counter()

    def pay(number: int) -> int:
        paid[number] += 1
        return number

    def handle(row: Any, context: kl.Context) -> Any:
        context.step(pay, number_of(row))
        if fails:
            raise ValueError("the second call fails")
        return tasks.insert(row, context)

    async def handle_async(row: Any, context: kl.Context) -> Any:
        await context.step(pay, number_of(row))
        if fails:
            raise ValueError("the second call fails")
        return tasks.insert(row, context)

    def run(first: int = 0) -> None:
        rows = [one for one in records(COUNT) if one["offset"] >= first]
        tasks.run(tasks.step(handle_async if is_async else handle, steps=kl.Steps()), rows)

    fails = True
    with pytest.raises(kl.HandlerError):
        run()
    assert paid
    fails = False
    tasks.is_at(0, run="after a restart")
    run()
    assert set(paid.values()) == {1}
    assert tasks.effects() == list(range(COUNT))
    assert tasks.select("SELECT count(*) FROM keylane_steps") == [(COUNT,)]
    tasks.is_at(1, below={"in": dict.fromkeys({one["partition"] for one in records(COUNT)}, 1)})
    run(1)
    assert tasks.select("SELECT min(at) FROM keylane_steps") == [(1,)], "what no restart can ask for is deleted"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delivery": "at_least_once"}, "steps: rows have no commits of their own"),
        ({"steps": kl.Steps(topic="kept")}, "Steps.topic='kept': the store keeps the steps of rows"),
        ({"batch": kl.Batch(5)}, "steps, batch: a step is of one record"),
        ({"workers": kl.Processes()}, "workers=Processes(count=None): a database transaction is open in the process"),
        ({"handler": number_of}, "steps: the handler takes no context"),
        ({"steps": True}, "steps=True: give keylane.Steps(...)"),
    ],
)
def test_rows_that_cannot_keep_steps_are_refused_with_the_reason(
    tasks: Tasks, options: dict[str, Any], says: str
) -> None:
    given: dict[str, Any] = {"handler": tasks.insert, "returns": RETURNS, "steps": kl.Steps()}
    with pytest.raises(kl.UsageError) as raised:
        parallel_map(**(given | {"delivery": kl.ExactlyOnce(tasks.store)} | options))
    assert says in str(raised.value)
