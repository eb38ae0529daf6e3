"""What runs on which Spark: real queries with a kill in each, and refusals by name. `make spark-versions` runs them on
each version, and writes docs/spark-versions.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peers
import pytest

import keylane as kl
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.spark import acknowledged, parallel_map
from keylane.spark.versions import ADMISSION, ARROW_STREAM_SINKS, DATA_SOURCES, TASK_CPUS, installed, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak

PROGRAM = Path(__file__).with_name("versions_program.py")
WAVE = 300
"""Records before each kill."""
PATIENCE_S = 400.0
"""For a program that takes ten seconds on an idle machine."""
OF_THE_CONNECTOR = 'map(scala.Function1)" because the return value of "scala.Option.get()" is null'
"""How a query on Spark 4.1's connector may end once it has done an unfinished batch again (SPARK-55271)."""
CONNECTORS = {(3, 5): "spark_kafka_3", (4, 0): "spark_kafka_4_0", (4, 1): "spark_kafka_4_1"}
"""What `bench/peers` has for an older Spark."""
without_sources = pytest.mark.skipif(not DATA_SOURCES.here, reason="the source needs Spark 4.0")


@pytest.fixture
def again(jvm: None) -> Iterator[SparkSession]:
    """A session whose tasks may fail once."""
    session = kl.spark.session("local[2,3]", "keylane versions", **{"spark.ui.enabled": "false"})
    yield session
    session.stop()


def test_a_killed_worker_of_parallel_map(again: SparkSession, tmp_path: Path) -> None:
    """Spark runs its task again: each row once."""
    flag = tmp_path / "killed"

    def function(row: Any) -> tuple[int]:
        if row.id == 777 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return (row.id,)

    found = again.range(0, 2_000, 1, 4).transform(parallel_map(function, "id bigint", max_concurrency=20)).collect()
    assert flag.exists()
    assert sorted(row.id for row in found) == list(range(2_000))


class Stream:
    """The program, which is killed and started again."""

    def __init__(self, work: Any, folder: Path, *kind: str) -> None:
        self._command = [sys.executable, str(PROGRAM), "local[2]", work.servers, work.topic, work.output, str(folder)]
        self._command += kind
        self.working = folder / "working"
        """Whether a row has been in the function."""
        self._log = folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def runs(self) -> bool:
        """True. Raises when the query has ended; one that the connector's own fault has ended is started once more."""
        assert self._process is not None
        if self._process.poll() is not None:
            text = self.told()
            is_the_connectors = OF_THE_CONNECTOR in text and version_of(installed()) == (4, 1)
            assert is_the_connectors, f"the query ended: {text}"
            self._log.unlink()
            self.start()
        return True

    def told(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-4_000:]

    def kill(self) -> None:
        """SIGKILL to the driver and to its JVM, if they are still there."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Waits for the end of a query that ends by itself."""
        assert self._process is not None
        code = self._process.wait(PATIENCE_S)
        assert code == 0, self._log.read_text(errors="replace")[-4_000:]


def in_files(folder: Path) -> list[int]:
    """What the sink has that writes a file a batch."""
    return [one for file in (folder / "out").glob("*.json") for one in json.loads(file.read_text())]


def fill(work: Any, first: int) -> None:
    with BulkProducer(work.servers) as producer:
        for number in range(first, first + WAVE):
            producer.produce(kl.Output(work.topic, b"key-%d" % (number % 23), b"%d" % number))


def read(work: Any) -> list[int]:
    """What the output topic has for a reader of committed records."""
    return [int(one.value or b"") for some in read_to_end(work.servers, work.output) for one in some]


def killed_twice(
    work: Any, stream: Stream, until: Callable[..., None], numbers: Callable[[], list[int]], group: str
) -> list[int]:
    """Four waves of records, and a kill of the driver in the middle of the second and the third. Returns what the sink
    has, once it has all and `group` has committed all: after a death the next batch's commit brings the group up."""

    def wait(condition: Callable[[], object]) -> None:
        until(lambda: stream.runs() and condition(), stream.told)

    stream.start()
    try:
        for wave in range(4):
            stream.working.unlink(missing_ok=True)
            fill(work, wave * WAVE)
            wait(stream.working.exists)
            if wave in (1, 2):
                stream.kill()
                stream.start()
            wanted = {2 * number for number in range((wave + 1) * WAVE)}
            wait(lambda: set(numbers()) >= wanted)  # noqa: B023 - called here
        work.group = group
        wait(lambda: work.lag() == 0)
    finally:
        stream.kill()
    assert set(numbers()) == wanted
    return numbers()


@without_sources
def test_a_killed_stream_from_source_to_sink(java: None, work: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    """At least once: nothing is lost. `GroupCommits` commits."""
    killed_twice(work, Stream(work, tmp_path, "sink"), until, lambda: read(work), "sink")


@pytest.mark.skipif(not ARROW_STREAM_SINKS.here, reason="the source needs Spark 4.1 for a sink that is exactly once")
def test_a_killed_stream_into_the_exactly_once_sink(
    java: None, work: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    """A reader of committed records has each row once."""
    found = killed_twice(work, Stream(work, tmp_path, "exact"), until, lambda: read(work), "exact")
    assert len(found) == len(set(found))


@without_sources
def test_a_killed_acknowledged_stream(java: None, work: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    """The sink is idempotent by batch, so each row is there once: a batch that is replayed is the same."""
    stream = Stream(work, tmp_path, "acknowledged")
    found = killed_twice(work, stream, until, lambda: in_files(tmp_path), "acknowledged")
    assert len(found) == len(set(found))


@without_sources
def test_a_killed_run_of_available_now(java: None, work: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    """The next one has what was there, each row once, and the group stands where the sink does."""
    stream = Stream(work, tmp_path, "available")
    work.group = "available"
    try:
        for wave in range(3):
            stream.working.unlink(missing_ok=True)
            fill(work, wave * WAVE)
            wanted = [2 * number for number in range((wave + 1) * WAVE)]
            stream.start()
            if wave:
                until(stream.working.exists, stream.told)
                stream.kill()
                assert len(in_files(tmp_path)) < len(wanted), "the kill came too late"
                stream.start()
            stream.end()
            assert sorted(in_files(tmp_path)) == wanted
            assert work.lag() == 0
    finally:
        stream.kill()


@without_sources
def test_available_now_reads_what_is_there_and_goes_on_from_its_checkpoint(
    spark: SparkSession, work: Any, tmp_path: Path
) -> None:
    """Also where Spark asks for the end before it says where the query stands."""
    work.admin.create_topics({f"{work.topic}-later": 1})
    seen: list[int] = []
    options = {"kafka.bootstrap.servers": work.servers, "subscribePattern": f"{work.topic}.*"}
    options["startingOffsets"] = "earliest"
    for number in range(3):
        fill(work, number * WAVE)
        frame = spark.readStream.format("keylane").options(**options).load()
        writer = frame.writeStream.foreachBatch(
            lambda frame, _: seen.extend(int(bytes(row.value)) for row in frame.collect())
        )
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        assert sorted(seen) == list(range((number + 1) * WAVE))


def test_a_killed_stream_of_sparks_connector(java: None, work: Any, tmp_path: Path, until: Callable[..., None]) -> None:
    """`parallel_map` and `GroupCommits` beside it."""
    if reason := peers.missing():
        pytest.skip(f"Spark's Kafka connector cannot be fetched: {reason}")
    connector = CONNECTORS.get(version_of(installed()), "spark_kafka")
    jars = ",".join(map(str, peers.jars(connector).glob("*.jar")))
    killed_twice(work, Stream(work, tmp_path, "connector", jars), until, lambda: read(work), "connector")


def test_what_this_spark_lacks_is_refused_by_name(spark: SparkSession, work: Any, tmp_path: Path) -> None:
    """With the version that has it."""
    if not TASK_CPUS.here:
        with pytest.raises(kl.UsageError, match=rf"task_cpus=0.25 needs Spark 4.3, and this is {installed()}"):
            kl.spark.start(work.pipeline(), spark, lanes=1, task_cpus=0.25)
    if not DATA_SOURCES.here:
        for one in (spark.read, spark.readStream, spark.range(1).write):
            with pytest.raises(kl.UsageError, match=r'format\("keylane"\) needs Spark 4.0, .*GroupCommits'):
                one.format("keylane")
        with pytest.raises(kl.UsageError, match=r"acknowledged\(…\) needs Spark 4\.0, .*GroupCommits"):
            acknowledged(print)
    elif not ARROW_STREAM_SINKS.here:
        options = {"kafka.bootstrap.servers": work.servers, "topic": work.output, "delivery": "exactly_once"}
        writer = (
            spark.readStream.format("rate")
            .load()
            .selectExpr("CAST(CAST(value AS string) AS binary) AS value")
            .writeStream
        )
        place = {"checkpointLocation": str(tmp_path), "sinkName": "refused"}
        with pytest.raises(Exception, match=r"delivery=exactly_once needs Spark 4\.1"):
            writer.format("keylane").options(**options, **place).start().awaitTermination()
    if DATA_SOURCES.here and not ADMISSION.here:
        options = {"kafka.bootstrap.servers": work.servers, "subscribe": work.topic, "maxOffsetsPerTrigger": "7"}
        frame = spark.readStream.format("keylane").options(**options).load()
        with pytest.raises(Exception, match=r"option maxOffsetsPerTrigger=7 needs Spark 4\.2"):
            frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
