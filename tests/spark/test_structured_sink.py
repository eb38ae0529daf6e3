"""Writing with `format("keylane")`, batch and streaming, to a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import array, col, expr, lit, struct

from keylane.errors import UsageError
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keylane.broker.process import BrokerProcess
    from keylane.records import Record


@pytest.fixture(scope="module")
def servers(broker: BrokerProcess) -> str:
    names = {"rows": 2, "headers": 1, "left": 1, "right": 1, "in": 2, "out": 2, "counted": 1, "counts": 1}
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics(names)
    return broker.bootstrap


def records(servers: str, topic: str) -> list[Record]:
    return [record for batch in read_to_end(servers, topic) for record in batch]


@pytest.mark.soak
def test_a_batch_is_written_with_the_partitioner_of_javas_clients(spark: SparkSession, servers: str) -> None:
    rows = spark.range(50).select(expr("cast(id % 5 as string) key"), expr("cast(id as string) value"))
    rows.write.format("keylane").mode("append").option("kafka.bootstrap.servers", servers).option(
        "topic", "rows"
    ).save()
    found = records(servers, "rows")
    assert sorted(int(one.value or b"") for one in found) == list(range(50))
    # murmur2 of Kafka's Java clients, over two partitions
    assert {(one.key, one.partition) for one in found} == {(b"0", 0), (b"1", 1), (b"2", 0), (b"3", 1), (b"4", 1)}


@pytest.mark.full
def test_topic_partition_and_headers_come_from_columns(spark: SparkSession, servers: str) -> None:
    rows = spark.range(4).select(
        expr("if(id % 2 = 0, 'left', 'right')").alias("topic"),
        lit(0).alias("partition"),
        col("id").cast("string").cast("binary").alias("value"),
        array(struct(lit("h").alias("key"), lit(b"x").alias("value"))).alias("headers"),
    )
    rows.write.format("keylane").mode("append").option("kafka.bootstrap.servers", servers).save()
    assert sorted(one.value or b"" for one in records(servers, "left")) == [b"0", b"2"]
    assert records(servers, "right")[0].headers == [("h", b"x")]
    options = {"kafka.bootstrap.servers": servers, "topic": "headers"}
    rows.drop("topic").write.format("keylane").mode("append").options(**options).save()
    assert [one.headers for one in records(servers, "headers")] == [[("h", b"x")]] * 4


def test_a_stream_writes_each_batch(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": servers, "topic": "in"}
    rows = spark.range(20).select(col("id").cast("string").alias("value"))
    rows.write.format("keylane").mode("append").options(**options).save()
    source = {"kafka.bootstrap.servers": servers, "subscribe": "in", "startingOffsets": "earliest"}
    frame = spark.readStream.format("keylane").options(**source, maxOffsetsPerTrigger="7").load()
    query = (
        frame.select("key", "value")
        .writeStream.format("keylane")
        .options(**options | {"topic": "out"})
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert sorted(int(one.value or b"") for one in records(servers, "out")) == list(range(20))


@pytest.mark.parametrize(
    ("column", "topic", "says"),
    [("id", "rows", "column 'id': the sink takes"), ("cast(id as string) value", "a/b", "could not be produced")],
)
def test_what_cannot_be_written_fails(spark: SparkSession, servers: str, column: str, topic: str, says: str) -> None:
    options = {"kafka.bootstrap.servers": servers, "kafka.message.timeout.ms": "3000", "topic": topic}
    with pytest.raises(Exception, match=says):
        spark.range(1).selectExpr(column).write.format("keylane").mode("append").options(**options).save()


def test_a_whole_result_is_written_each_time_and_update_is_refused_by_name(
    spark: SparkSession, servers: str, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": servers}
    spark.range(4).selectExpr("cast(id % 2 as string) key", "'v' value").write.format("keylane").mode("append").options(
        topic="counted", **options
    ).save()
    source = spark.readStream.format("keylane").options(subscribe="counted", startingOffsets="earliest", **options)
    counts = source.load().groupBy("key").count().selectExpr("key", "cast(count as string) value")
    writer = counts.writeStream.format("keylane").options(
        topic="counts", checkpointLocation=str(tmp_path / "c"), **options
    )
    with pytest.raises(UsageError, match="take complete, or write each batch, foreachBatch"):
        writer.outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "c"))
    query = writer.outputMode("complete").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted((one.key, one.value) for one in records(servers, "counts")) == [(b"0", b"2"), (b"1", b"2")]
