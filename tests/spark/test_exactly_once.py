"""`writeStream.format("keylane")` with `delivery=exactly_once`: each row once for a reader of another library."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer
from kit.committed import committed_values
from kit.processes import of_session
from kit.stages import kill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from keylane.broker.process import BrokerProcess

PROGRAM = Path(__file__).with_name("exactly_once_program.py")
PATIENCE_S = 240
_numbers = itertools.count()


def committed(servers: str, topic: str, *, now: bool = False) -> list[int]:
    return sorted(map(int, committed_values(servers, topic, now=now)))


def fill(servers: str, topic: str, numbers: range) -> None:
    with BulkProducer(servers) as producer:
        for number in numbers:
            producer.produce(kl.Output(topic, b"key-%d" % (number % 7), b"%d" % number))


class Program:
    """The query in a process of its own."""

    def __init__(self, servers: str, topic: str, output: str, folder: Path, master: str = "local[2]") -> None:
        self._command = [sys.executable, str(PROGRAM), master, servers, topic, output, str(folder)]
        self.folder = folder
        self._sessions: list[int] = []

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        with (self.folder / "driver.log").open("ab") as log:
            process = subprocess.Popen([*self._command, *options], stdout=log, stderr=log, start_new_session=True)
        self._sessions.append(process.pid)
        return process

    def run(self, *options: str) -> int:
        """The exit code."""
        return self.start(*options).wait(PATIENCE_S)

    def log(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-5_000:]

    def close(self) -> None:
        for session in self._sessions:
            kill(of_session(session))


@pytest.fixture
def topics(broker: BrokerProcess) -> tuple[str, str, str]:
    number = next(_numbers)
    source, output = f"exact-in-{number}", f"exact-out-{number}"
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({source: 3, output: 2})
    return broker.bootstrap, source, output


def stream(spark: SparkSession, topics: tuple[str, str, str]) -> DataFrame:
    servers, source, _ = topics
    options = {"kafka.bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"}
    return spark.readStream.format("keylane").options(**options, maxOffsetsPerTrigger="20").load()


def written(frame: DataFrame, topics: tuple[str, str, str], checkpoint: Path, **options: str) -> StreamingQuery:
    writer = frame.select("key", "value").writeStream.format("keylane").option("kafka.bootstrap.servers", topics[0])
    writer = writer.options(topic=topics[2], delivery="exactly_once", sinkName=topics[2], **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S), query.status
    return query


@pytest.mark.full
def test_a_query_is_seen_once_and_its_replay_changes_nothing(
    spark: SparkSession, topics: tuple[str, str, str], tmp_path: Path
) -> None:
    servers, source, output = topics
    fill(servers, source, range(50))
    query = written(stream(spark, topics), topics, tmp_path / "c")
    assert query.exception() is None
    assert committed(servers, output) == list(range(50))
    last = max((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
    for one in (last, last.with_name(f".{last.name}.crc")):
        one.unlink(missing_ok=True)  # as after a crash between the sink and Spark's log
    fill(servers, source, range(50, 60))
    again = written(stream(spark, topics), topics, tmp_path / "c")
    assert again.exception() is None
    assert committed(servers, output) == list(range(60))


@pytest.mark.full
def test_a_driver_killed_between_the_list_and_the_ends(
    spark: SparkSession, topics: tuple[str, str, str], tmp_path: Path
) -> None:
    servers, source, output = topics
    fill(servers, source, range(100))
    program = Program(*topics, tmp_path)
    try:
        (tmp_path / "die").write_text("End:before:2 driver")  # of the first batch's three transactions
        assert program.run() == -signal.SIGKILL, program.log()
    finally:
        program.close()
    steps = (tmp_path / "steps").read_text().split()
    assert (steps.count("Decide:after"), steps.count("End:after")) == (1, 1)
    assert len(committed(servers, output, now=True)) < 60, "the first batch is not whole yet"
    assert written(stream(spark, topics), topics, tmp_path / "checkpoint").exception() is None
    assert committed(servers, output) == list(range(100))


def test_a_new_checkpoint_under_an_old_name_is_refused(
    spark: SparkSession, topics: tuple[str, str, str], tmp_path: Path
) -> None:
    servers, source, output = topics
    fill(servers, source, range(10))
    assert written(stream(spark, topics), topics, tmp_path / "first").exception() is None
    with pytest.raises(StreamingQueryException, match="the name belongs to query"):
        written(stream(spark, topics), topics, tmp_path / "second")
    assert committed(servers, output) == list(range(10))


def test_a_batch_write_is_refused(spark: SparkSession, topics: tuple[str, str, str]) -> None:
    options = {"kafka.bootstrap.servers": topics[0], "topic": topics[2], "delivery": "exactly_once", "sinkName": "x"}
    rows = spark.range(1).select(col("id").cast("string").alias("value"))
    with pytest.raises(Exception, match="delivery=exactly_once is for streaming queries"):
        rows.write.format("keylane").mode("append").options(**options).save()


@pytest.mark.soak
def test_a_replay_before_an_operator_with_state_changes_nothing(
    spark: SparkSession, topics: tuple[str, str, str], tmp_path: Path
) -> None:
    servers, source, output = topics
    for _ in range(2):
        fill(servers, source, range(50))
    for run in range(2):
        distinct = stream(spark, topics).dropDuplicates(["value"])
        assert written(distinct, topics, tmp_path / "c").exception() is None
        assert committed(servers, output) == list(range(50 + 20 * run))
        last = max((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
        for one in (last, last.with_name(f".{last.name}.crc")):
            one.unlink(missing_ok=True)
        fill(servers, source, range(30, 70))
