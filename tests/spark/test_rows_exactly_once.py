"""Rows exactly once on Spark: workers are killed and batches run again, and the database is asked from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from peers.postgres import PostgresServer, find_postgres

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.spark import acknowledged, parallel_map
from kit.filling import filling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keylane.broker.process import BrokerProcess

PARTITIONS = 2
RECORDS = 80
A_BATCH = 40
KILLS_AT = 63
"""A record in the middle of a batch."""
TABLE = "CREATE TABLE effects (number INTEGER)"
COLUMNS = "number int, made bigint"


@pytest.fixture(scope="module")
def source(broker: BrokerProcess) -> dict[str, str]:
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"once": PARTITIONS})
    with filling(broker.bootstrap) as producer:
        for number in range(RECORDS):
            value = str(number).encode()
            producer.produce(kl.Output("once", key=value, value=value, partition=number % PARTITIONS))
    return {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "once"}


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


def inserting(store: str, killed: Path) -> Callable[..., Any]:
    """A function that notes a record; at one of them it kills its worker, once."""
    mark = "%s" if "://" in store else "?"
    statement, place = f"INSERT INTO effects VALUES ({mark})", str(killed)

    def returned(row: Any) -> tuple[int, int]:
        number = int(row.value)
        if number == KILLS_AT and not os.path.exists(place):  # noqa: PTH110 - travels with the function
            with open(place, "w"):  # noqa: PTH123
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

    def _write(self, frame: DataFrame, batch: int) -> None:
        rows = sorted((row.number, row.made) for row in frame.collect())
        self.came.append((batch, rows))
        self.sink.setdefault(batch, rows)


@pytest.mark.full
def test_a_worker_that_is_killed_and_a_batch_that_is_replayed_repeat_no_effect(
    spark: SparkSession, source: dict[str, str], store: str, tmp_path: Path
) -> None:
    step = parallel_map(inserting(store, tmp_path / "killed"), COLUMNS, delivery=kl.ExactlyOnce(store))
    stream = Stream(spark, source, step, tmp_path / "checkpoint")
    with pytest.raises(Exception, match=r"(?i)worker"):
        stream.run()
    assert (tmp_path / "killed").exists()
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
