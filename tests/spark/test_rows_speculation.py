"""Two attempts of one task at the same time, which Spark starts for a slow one: one effect, and one set of rows."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from peers.postgres import PostgresServer, find_postgres
from pyspark import TaskContext

import keylane as kl
from keylane.spark import parallel_map
from kit.cluster import StandaloneCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

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
