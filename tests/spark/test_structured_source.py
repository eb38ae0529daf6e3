"""`format("keylane")`: batch and streaming reads of a real broker."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from pyspark.errors import StreamingQueryException

import keylane as kl
from keylane.kafka import exact
from keylane.kafka.admin import Admin
from keylane.offsets import OffsetMap, encode
from keylane.spark.structured.plans import Plan
from kit.filling import filling

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from keylane.broker.process import BrokerProcess

RECORDS = 90
"""In three partitions: number n at n % 3, with the offset n // 3 and the timestamp 1,000 * n + 1."""


@pytest.fixture(scope="module")
def servers(broker: BrokerProcess) -> str:
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({"numbers": 3, "other": 1})
    fill(broker.bootstrap, 0, RECORDS)
    return broker.bootstrap


def fill(servers: str, start: int, stop: int, topic: str = "numbers", partitions: int = 3) -> None:
    with filling(servers) as producer:
        for number in range(start, stop):
            key = None if number % 5 == 0 else b"k%d" % (number % 7)
            headers = [("n", b"%d" % number), ("n", None)] if number % 2 else ()
            producer.produce(
                kl.Output(topic, key, b"%d" % number, headers, number % partitions, timestamp_ms=1_000 * number + 1)
            )


def reads(spark: SparkSession, servers: str, **options: Any) -> DataFrame:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "numbers"} | options
    return spark.read.format("keylane").options(**{name: v for name, v in given.items() if v is not None}).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def of_partition(partition: int, start: int = 0, stop: int = RECORDS // 3) -> list[int]:
    return [3 * offset + partition for offset in range(start, stop)]


def test_a_batch_query_has_kafkas_columns(spark: SparkSession, servers: str) -> None:
    frame = reads(spark, servers, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    assert len(rows) == RECORDS
    for row in rows:
        number = int(bytes(row.value))
        assert (row.topic, row.partition, row.offset, row.ms) == (
            "numbers",
            number % 3,
            number // 3,
            1_000 * number + 1,
        )
        assert (row.timestampType, row.key) == (0, None if number % 5 == 0 else b"k%d" % (number % 7))
        headers = None if row.headers is None else [(one.key, one.value) for one in row.headers]
        assert headers == ([("n", b"%d" % number), ("n", None)] if number % 2 else None)
    assert "headers" not in reads(spark, servers).columns


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {
                "startingOffsets": '{"numbers":{"0":-2,"1":20,"2":29}}',
                "endingOffsets": '{"numbers":{"0":3,"1":22,"2":-1}}',
            },
            of_partition(0, 0, 3) + of_partition(1, 20, 22) + of_partition(2, 29),
        ),
        ({"startingTimestamp": "80000", "endingTimestamp": "85000"}, list(range(80, 85))),
        (
            {"startingOffsetsByTimestamp": '{"numbers":{"0":84000,"1":84000,"2":89000}}'},
            [84, 85, 87, 88, 89],
        ),
        (
            {"startingTimestamp": "88000", "startingOffsetsByTimestampStrategy": "latest"},
            [88, 89],
        ),
        ({"subscribe": None, "assign": '{"numbers":[1]}'}, of_partition(1)),
        ({"subscribe": None, "subscribePattern": "num.*"}, list(range(RECORDS))),
    ],
)  # fmt: skip
def test_where_a_batch_query_starts_and_ends(
    spark: SparkSession, servers: str, options: dict[str, Any], expected: list[int]
) -> None:
    assert numbers(reads(spark, servers, **options)) == sorted(expected)


def test_partitions_are_split(spark: SparkSession, servers: str) -> None:
    assert reads(spark, servers, minPartitions="7").rdd.getNumPartitions() == 7
    small = reads(spark, servers, maxRecordsPerPartition="8").selectExpr("value", "spark_partition_id() task")
    rows = [(row.task, int(bytes(row.value))) for row in small.collect()]
    assert sorted(Counter(task for task, _ in rows).values()) == [7] * 6 + [8] * 6
    assert sorted(number for _, number in rows) == list(range(RECORDS))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "gone"}, "topic 'gone' does not exist"),
        ({"startingOffsets": '{"numbers":{"0":1}}'}, "does not name numbers-1, numbers-2"),
        ({"startingTimestamp": "90000"}, "has no record at or after 90000"),
        ({"endingOffsets": '{"numbers":{"0":31,"1":-1,"2":-1}}'}, "and 31 is outside"),
        ({"kafka.no.such.setting": "1"}, "librdkafka refuses these client settings"),
    ],
)
def test_a_wrong_option_is_named(spark: SparkSession, servers: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(Exception, match=says):
        reads(spark, servers, **options).count()


def test_a_schema_is_refused(spark: SparkSession, servers: str) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": "numbers"}
    with pytest.raises(Exception, match="takes no other"):
        spark.read.format("keylane").schema("value string").options(**options).load().count()


def streams(spark: SparkSession, servers: str, checkpoint: Path, **options: Any) -> list[list[int]]:
    """The numbers of each batch of a query that ends with what is there."""
    batches: list[list[int]] = []
    given = {"kafka.bootstrap.servers": servers, "subscribe": "numbers", "startingOffsets": "earliest"} | options
    frame = spark.readStream.format("keylane").options(**given).load()
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batches.append(numbers(batch)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    if error := query.exception():
        raise error
    return batches


@pytest.mark.full
def test_a_stream_goes_on_from_its_checkpoint_in_limited_batches(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    Admin({"bootstrap.servers": servers}).create_topics({"stream": 3})
    fill(servers, 0, 30, "stream")
    first = streams(spark, servers, tmp_path / "c", subscribe="stream", maxOffsetsPerTrigger="12")
    assert [len(batch) for batch in first] == [12, 12, 6]
    assert sorted(joined(first)) == list(range(30))
    fill(servers, 30, 33, "stream")
    assert streams(spark, servers, tmp_path / "c", subscribe="stream") == [[30, 31, 32]]


def test_a_first_batch_is_replayed_as_it_was(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """Its start was `latest` then, and is somewhere else now."""
    Admin({"bootstrap.servers": servers}).create_topics({"replayed": 1})
    fill(servers, 0, 5, "replayed", 1)
    options = {"subscribe": "replayed", "startingOffsets": '{"replayed":{"0":2}}'}
    assert streams(spark, servers, tmp_path / "c", **options) == [[2, 3, 4]]
    (tmp_path / "c" / "commits" / "0").unlink()
    (tmp_path / "c" / "commits" / ".0.crc").unlink(missing_ok=True)
    fill(servers, 5, 7, "replayed", 1)
    options["startingOffsets"] = "latest"
    assert streams(spark, servers, tmp_path / "c", **options) == [[2, 3, 4], [5, 6]]


def test_a_new_checkpoint_starts_where_the_group_stands(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """With a map: what is complete above the committed offset is not read again."""
    offsets = OffsetMap(10, [10, 12, 13], 15)
    client = Consumer({"bootstrap.servers": servers, "group.id": "moved"})
    exact.commit_now(client, [_Commit(("numbers", 0), 10, encode(offsets)), _Commit(("numbers", 1), 28, "")])
    client.close()
    options = {"startingOffsets": "committed", "kafka.group.id": "moved", "maxOffsetsPerTrigger": "40"}
    batches = streams(spark, servers, tmp_path / "c", **options)
    left = [3 * one for one in (10, 12, 13, *range(16, 30))] + of_partition(1, 28) + of_partition(2)
    assert sorted(joined(batches)) == sorted(left)
    assert len(batches) == 2


def joined(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


class _Commit:
    leader_epoch = -1

    def __init__(self, name: tuple[str, int], offset: int, metadata: str) -> None:
        self.name, self.offset, self.metadata = name, offset, metadata


@pytest.mark.full
def test_a_log_that_is_another_one_fails_a_stream_or_is_read(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """The topic was made anew, and has more records by now than the checkpoint has read."""
    admin = Admin({"bootstrap.servers": servers})
    admin.create_topics({"again": 1})
    fill(servers, 0, 8, "again", 1)
    assert len(streams(spark, servers, tmp_path / "c", subscribe="again")[0]) == 8
    admin.delete_topics(["again"])
    admin.create_topics({"again": 1})
    fill(servers, 100, 110, "again", 1)
    with pytest.raises(Exception, match=r"again.* made anew"):
        streams(spark, servers, tmp_path / "c", subscribe="again")
    batches = streams(spark, servers, tmp_path / "c", subscribe="again", failOnDataLoss="false")
    assert batches == [list(range(100, 110))]
    fill(servers, 110, 112, "again", 1)
    assert streams(spark, servers, tmp_path / "c", subscribe="again") == [[110, 111]]


def test_a_copied_map_is_not_believed(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """A mirror writes it beside an offset of another log, and no leader epoch."""
    copied = encode(OffsetMap(10, [10, 12, 13], 15), is_marked=True)
    client = Consumer({"bootstrap.servers": servers, "group.id": "copied"})
    exact.commit_now(client, [_Commit(("numbers", one), 26, copied if one == 0 else "") for one in range(3)])
    client.close()
    options = {"startingOffsets": "committed", "kafka.group.id": "copied"}
    with pytest.raises(Exception, match="numbers-0: the commit of offset 26 was copied by another program"):
        streams(spark, servers, tmp_path / "refused", **options, onCopiedMap="fail")
    batches = streams(spark, servers, tmp_path / "c", **options)
    assert sorted(joined(batches)) == sorted([*of_partition(0, 26), *of_partition(1, 26), *of_partition(2, 26)])


def test_progress_has_offsets_and_what_is_latest(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": "numbers", "startingOffsets": "earliest"}
    frame = spark.readStream.format("keylane").options(**options, maxOffsetsPerTrigger="45").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        source = next(one for one in query.recentProgress if one.numInputRows == 45).sources[0]
    finally:
        query.stop()
    end, latest = json.loads(source.endOffset), json.loads(source.latestOffset)
    assert latest == {"numbers": {"0": 30, "1": 30, "2": 30}}
    behind = [latest[topic][one] - offset for topic, some in end.items() for one, offset in some.items()]
    assert sum(behind) in (45, 0), "as tools for the lag read Spark's own source"
    assert Plan.from_json(end).next == {
        (topic, int(one)): at for topic, some in end.items() for one, at in some.items()
    }


def test_a_wrong_option_of_a_stream_is_the_only_error(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": "in", "maxOffsetsPerTrigger": "many"}
    writer = spark.readStream.format("keylane").options(**options).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(60)
    assert "maxOffsetsPerTrigger='many': give a whole number of at least 1" in str(raised.value)
    assert "UnboundLocalError" not in str(raised.value)
