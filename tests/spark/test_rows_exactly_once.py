"""Rows exactly once on Spark: workers are killed and batches run again, and the database is asked from outside."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from peers.postgres import PostgresServer, find_postgres
from pyspark.errors import StreamingQueryException

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.spark import acknowledged, parallel_map
from kit.filling import filling

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keylane.broker.process import BrokerProcess

PARTITIONS = 2
RECORDS = 80
A_BATCH = 40
KILLS_AT = 63
"""A record in the middle of a batch."""
KILLS = 110
"""In the soak, each at another record."""
A_KILL = 10
"""Records for each of them."""
TABLE = "CREATE TABLE effects (number INTEGER)"
COLUMNS = "number int, made bigint"


@pytest.fixture(scope="module")
def source(broker: BrokerProcess) -> dict[str, str]:
    return filled(broker, "once", RECORDS)


def filled(broker: BrokerProcess, topic: str, records: int) -> dict[str, str]:
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({topic: PARTITIONS})
    with filling(broker.bootstrap) as producer:
        for number in range(records):
            value = str(number).encode()
            producer.produce(kl.Output(topic, key=value, value=value, partition=number % PARTITIONS))
    return {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.soak)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        place = str(tmp_path / "effects.db")
        with closing(sqlite3.connect(place)) as database:
            database.execute(TABLE)
        yield place
    else:
        if find_postgres() is None:
            pytest.skip("PostgreSQL is not installed")
        import psycopg

        with PostgresServer() as server:
            with psycopg.connect(server.conninfo) as database:
                database.execute(TABLE)
            yield server.conninfo


def select(store: str, text: str) -> list[tuple[Any, ...]]:
    """By a client of its own."""
    if "://" not in store:
        with closing(sqlite3.connect(store)) as database:
            return database.execute(text).fetchall()
    import psycopg

    with psycopg.connect(store) as database:
        return database.execute(text.encode()).fetchall()


def effects(store: str) -> list[int]:
    return [number for (number,) in select(store, "SELECT number FROM effects ORDER BY number")]


def inserting(store: str, folder: Path, kills_at: Collection[int] = ()) -> Callable[..., Any]:
    """A function that notes a record; at these it kills its worker, once each: after the effect, and before the
    transaction commits."""
    mark = "%s" if "://" in store else "?"
    statement, place = f"INSERT INTO effects VALUES ({mark})", str(folder)

    def returned(row: Any) -> tuple[int, int]:
        number = int(row.value)
        died = f"{place}/died-{number}"
        if number in kills_at and not os.path.exists(died):  # noqa: PTH110 - travels with the function
            with open(died, "w"):  # noqa: PTH123
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return number, time.time_ns()

    def insert(row: Any, context: kl.Context) -> Any:
        context.transaction.execute(statement, (int(row.value),))
        return returned(row)

    async def insert_async(row: Any, context: kl.Context) -> Any:
        await context.transaction.execute(statement, (int(row.value),))
        await asyncio.sleep(0.001)
        return returned(row)

    return insert_async if "://" in store else insert


class Stream:
    """A query into a sink that has each batch under its number, once, and what each batch was when it came."""

    def __init__(self, spark: SparkSession, source: dict[str, str], step: Any, folder: Path) -> None:
        self.sink: dict[int, list[tuple[int, int]]] = {}
        self.came: list[tuple[int, list[tuple[int, int]]]] = []
        self.folder = folder
        self._spark, self._source, self._step = spark, source, step

    def run(self) -> None:
        """To the end of the topic; raises what it fails with."""
        options = {"startingOffsets": "earliest", "kafka.group.id": "once", "maxOffsetsPerTrigger": str(A_BATCH)}
        frame = self._spark.readStream.format("keylane").options(**self._source | options).load()
        writer = frame.transform(self._step).writeStream.foreachBatch(acknowledged(self._write))
        writer = writer.option("checkpointLocation", str(self.folder)).trigger(availableNow=True)
        writer.start().awaitTermination()

    def has_ended(self) -> bool:
        """Whether it came to the end of the topic; False when a worker died."""
        try:
            self.run()
        except StreamingQueryException as error:
            if "worker" not in str(error).lower():
                raise
            return False
        return True

    def _write(self, frame: DataFrame, batch: int) -> None:
        rows = sorted((row.number, row.made) for row in frame.collect())
        self.came.append((batch, rows))
        self.sink.setdefault(batch, rows)


@pytest.mark.full
def test_a_worker_that_is_killed_and_a_batch_that_is_replayed_repeat_no_effect(
    spark: SparkSession, source: dict[str, str], store: str, tmp_path: Path
) -> None:
    step = parallel_map(inserting(store, tmp_path, {KILLS_AT}), COLUMNS, delivery=kl.ExactlyOnce(store))
    stream = Stream(spark, source, step, tmp_path / "checkpoint")
    with pytest.raises(Exception, match=r"(?i)worker"):
        stream.run()
    assert (tmp_path / f"died-{KILLS_AT}").exists()
    half = effects(store)
    assert A_BATCH < len(half) < 2 * A_BATCH, "the task had committed some of its rows and given none to Spark"
    assert [batch for batch, _ in stream.came] == [0]

    stream.run()
    assert effects(store) == list(range(RECORDS))
    assert sorted(number for rows in stream.sink.values() for number, _ in rows) == list(range(RECORDS))
    last = max(stream.sink)
    kept = select(store, "SELECT count(*) FROM keylane_processed")[0][0]
    assert kept == len(stream.sink[last]), "what was before the last batch is purged"

    for file in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):  # killed between the sink and the checkpoint
        file.unlink()
    stream.run()
    assert [batch for batch, _ in stream.came] == [0, 1, 1]
    assert stream.came[-1] == stream.came[-2], "the same rows: the sink may write them again"
    assert effects(store) == list(range(RECORDS))


@pytest.mark.soak
def test_a_hundred_workers_that_are_killed_repeat_no_effect(
    spark: SparkSession,
    broker: BrokerProcess,
    store: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Each ends the query, which is started again."""
    records = KILLS * A_KILL
    source = filled(broker, f"killed-{uuid.uuid4()}", records)
    kills_at = frozenset(random.Random(20261126).sample(range(records), KILLS))
    step = parallel_map(inserting(store, tmp_path, kills_at), COLUMNS, delivery=kl.ExactlyOnce(store))
    stream = Stream(spark, source, step, tmp_path / "checkpoint")
    starts = 1
    while not stream.has_ended():
        starts += 1
        assert starts <= KILLS + 1
    assert len(list(tmp_path.glob("died-*"))) == KILLS
    record_property("starts", starts)
    assert effects(store) == list(range(records))
    assert sorted(number for rows in stream.sink.values() for number, _ in rows) == list(range(records))
    assert select(store, "SELECT count(*) FROM keylane_processed")[0][0] == len(stream.sink[max(stream.sink)])


@pytest.mark.soak
def test_an_action_after_another_has_no_effect_again(
    spark: SparkSession, source: dict[str, str], store: str, tmp_path: Path
) -> None:
    """And a built-in sink of a stream needs no `acknowledged`."""
    function = inserting(store, tmp_path)
    once = kl.ExactlyOnce(store, scope="two actions")
    frame = spark.read.format("keylane").options(**source).load()
    frame = frame.transform(parallel_map(function, COLUMNS, delivery=once))
    assert frame.count() == RECORDS
    first, second = sorted(frame.collect()), sorted(frame.collect())
    assert first == second
    assert effects(store) == list(range(RECORDS))

    once = kl.ExactlyOnce(store, identity="key")
    rows = spark.readStream.format("keylane").options(startingOffsets="earliest", **source).load()
    rows = rows.transform(parallel_map(function, COLUMNS, delivery=once))
    for folder in ("first", "second"):
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / folder)).trigger(availableNow=True)
        writer.format("parquet").start(str(tmp_path / "out" / folder)).awaitTermination()
    assert effects(store) == sorted([*range(RECORDS)] * 3), "each checkpoint has a scope of its own"


def test_without_a_stream_and_a_scope_it_is_refused(spark: SparkSession, source: dict[str, str], store: str) -> None:
    frame = spark.read.format("keylane").options(**source).load()
    with pytest.raises(kl.UsageError, match="a frame that is no stream has no checkpoint"):
        frame.transform(parallel_map(print, COLUMNS, delivery=kl.ExactlyOnce(store)))
    with pytest.raises(kl.UsageError, match="the frame has no column offset, by which a row is known"):
        frame.drop("offset").transform(parallel_map(print, COLUMNS, delivery=kl.ExactlyOnce(store, scope="a")))
