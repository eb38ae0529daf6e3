"""Two attempts of one task at the same time, which Spark starts for a slow one: one effect, and each row once."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from peers.postgres import PostgresServer, find_postgres
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from keylane.kafka.open_transactions import TransactionsClient
from keylane.spark import parallel_map
from keylane.spark.structured.exact.record import task_prefix
from keylane.spark.structured.source import KeylaneSource
from kit.cluster import StandaloneCluster
from kit.committed import committed_values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keylane.broker.process import BrokerProcess

TASKS = 6
A_TASK = 5
SLOW = TASKS * A_TASK - 1
"""The last row of the last task; the others of its task are quick."""
SLOW_S = 20.0


@pytest.fixture(scope="module")
def spark(jvm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.python.daemon.module": "pyspark.daemon",  # a local session before it has ours, which stays with the JVM
    }
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), cores=1, hosts=("127.0.0.1", "127.0.0.2")) as cluster:
        made = kl.spark.session(cluster.url, "keylane speculation tests", **settings)
        yield made
        made.stop()


@pytest.mark.soak
def test_two_attempts_at_once_have_one_effect_and_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    if find_postgres() is None:
        pytest.skip("PostgreSQL is not installed")
    import psycopg

    begun, slept = str(tmp_path / "begun"), str(tmp_path / "slept")

    @contextmanager
    def noted() -> Iterator[None]:
        context: Any = TaskContext.get()
        with open(begun, "a") as file:  # noqa: PTH123 - travels with the function
            file.write(f"{context.partitionId()} {context.attemptNumber()}\n")
        yield

    def insert(row: Any, context: kl.Context) -> Any:
        context.transaction.execute("INSERT INTO effects VALUES (%s)", (row.offset,))
        if row.offset == SLOW and not os.path.exists(slept):  # noqa: PTH110 - as above
            with open(slept, "w"):  # noqa: PTH123
                pass
            time.sleep(SLOW_S)
        return row.offset, time.time_ns()

    with PostgresServer() as server:
        with psycopg.connect(server.conninfo) as database:
            database.execute("CREATE TABLE effects (number INTEGER)")
        once = kl.ExactlyOnce(server.conninfo, scope="speculated")
        rows = spark.range(TASKS * A_TASK, numPartitions=TASKS).selectExpr("'t' topic", "0 partition", "id offset")
        frame = rows.transform(parallel_map(insert, "number bigint, made bigint", delivery=once, resource=noted))
        first = sorted(frame.collect())
        again = sorted(frame.collect())
        with psycopg.connect(server.conninfo) as database:
            effects = sorted(number for (number,) in database.execute("SELECT number FROM effects"))
    attempts = {line for line in (tmp_path / "begun").read_text().splitlines() if line.startswith(f"{TASKS - 1} ")}
    assert attempts >= {f"{TASKS - 1} 0", f"{TASKS - 1} 1"}, "Spark started a second one"
    assert [row.number for row in first] == list(range(TASKS * A_TASK))
    assert effects == list(range(TASKS * A_TASK))
    assert first == again


@pytest.mark.soak
def test_the_transaction_of_the_slower_attempt_is_aborted(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The first attempt of the last task has written its rows, and stands still; a second one writes them again."""
    begun, admin, once = str(tmp_path / "begun"), Admin({"bootstrap.servers": broker.bootstrap}), {"last": TASKS - 1}

    class SlowWriter(DataSourceStreamArrowWriter):
        def __init__(self, writer: Any) -> None:
            self._writer = writer

        def write(self, iterator: Iterator[Any]) -> Any:
            message = self._writer.write(iterator)
            context: Any = TaskContext.get()
            with open(begun, "a") as file:  # noqa: PTH123 - travels with the writer
                file.write(f"{context.partitionId()} {context.attemptNumber()}\n")
            if (context.partitionId(), context.attemptNumber()) == (once["last"], 0):
                time.sleep(60)
            return message

        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
            self._writer.commit(messages, batchId)

        def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
            self._writer.abort(messages, batchId)

    class SlowSource(KeylaneSource):
        @classmethod
        def name(cls) -> str:
            return "slow"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return SlowWriter(super().streamWriter(schema, overwrite))

    admin.create_topics({"fast-in": TASKS, "slow-out": 1})
    with BulkProducer(broker.bootstrap) as producer:
        for number in range(TASKS * A_TASK):
            producer.produce(kl.Output("fast-in", None, b"%d" % number, partition=number % TASKS))
    spark.dataSource.register(SlowSource)
    servers = {"kafka.bootstrap.servers": broker.bootstrap}
    source = spark.readStream.format("keylane").options(subscribe="fast-in", startingOffsets="earliest", **servers)
    query = (
        source.load()
        .select("value")
        .writeStream.format("slow")
        .options(topic="slow-out", delivery="exactly_once", sinkName="slow-out", **servers)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(180)
    assert (query.isActive, query.exception()) == (False, None)
    attempts = (tmp_path / "begun").read_text().splitlines()
    assert {f"{TASKS - 1} 0", f"{TASKS - 1} 1"} <= {*attempts}, "both have written"
    assert sorted(map(int, committed_values(broker.bootstrap, "slow-out"))) == list(range(TASKS * A_TASK))
    end = admin.log_ends([("slow-out", 0)], read_committed=False)["slow-out", 0]
    assert end is not None
    assert end >= (TASKS + 1) * (A_TASK + 1), "rows and markers of each task's transaction, and of the aborted one"
    with TransactionsClient({"bootstrap.servers": broker.bootstrap}) as client:
        assert client.open_ids(task_prefix("slow-out"), "slow-out") == (0, [])
