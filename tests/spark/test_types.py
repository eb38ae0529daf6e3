"""Spark's types through `parallel_map`, as `collect()`, Spark's sort and its groups have them (`kit.spark_types`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.spark import parallel_map
from kit import spark_types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW = ("double", "no text", "UTF8_LCASE", "timestamp", "array<timestamp>")


def test_values_order_and_keys_are_sparks(spark: SparkSession) -> None:
    some = [one for one in spark_types.here() if one.name in FEW]
    assert [*spark_types.differences(spark, some, ["threads"])] == []
    assert [*spark_types.differences_of_order(spark, [one for one in some if one.name in FEW[:3]])] == []


@pytest.mark.full
def test_every_type_is_sparks_in_three_zones_under_another_clock(java: None) -> None:
    environment = os.environ | {"TZ": "America/New_York", "PYTHONPATH": str(Path(spark_types.__file__).parents[1])}
    command = [sys.executable, "-m", "kit.spark_types"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_a_name_with_a_dot_is_the_columns_own(spark: SparkSession) -> None:
    """Beside a struct whose field has the same name."""
    frame = spark.range(8).selectExpr("concat('u', id % 2) AS `user.id`", "named_struct('id', id) AS user", "id AS n")

    def told(row: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return (row["user.id"], row.n, context.partitionId())

    step = parallel_map(told, "u string, n long, p int", ordering="key", key="user.id", order_by="n")
    rows = frame.repartition(4).transform(step).collect()
    assert len({(row.u, row.p) for row in rows}) == 2
    assert sorted(row.n for row in rows) == [*range(8)]


def test_a_stream_is_not_sorted_by_what_only_spark_can_sort(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value", "array(value) AS a")
    step = parallel_map(spark_types.same, "value long, a array<long>", ordering="key", key="value", order_by="a")
    with pytest.raises(kl.UsageError, match="order_by='a' is array<bigint>: Spark sorts no stream"):
        stream.transform(step)


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_a_source_that_divides_partitions_keeps_no_order(spark: SparkSession, option: str) -> None:
    source = spark.readStream.format("keylane").options(
        subscribe="t", **{"kafka.bootstrap.servers": "a:1", option: "4"}
    )
    frame = source.load().where("value is not null").select("key", "offset")
    with pytest.raises(kl.UsageError, match=f"{option}=4, which divides a partition among tasks"):
        frame.transform(parallel_map(spark_types.same, "key binary, offset long", ordering="key", key="key"))
    frame.transform(parallel_map(spark_types.same, "key binary, offset long"))
    frame.transform(
        parallel_map(spark_types.same, "key binary, offset long", ordering="key", key="key", order_by="offset")
    )


def test_what_spark_does_not_hash_is_no_key(spark: SparkSession) -> None:
    frame = spark.sql("SELECT map('a', 1) AS m")
    with pytest.raises(kl.UsageError, match="key=m is map<string,int>, of which Spark makes no key"):
        frame.transform(parallel_map(spark_types.same, frame.schema, ordering="key", key="m"))


def test_timestamp_in_a_session_without_zones_is_refused_by_name(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        with pytest.raises(kl.UsageError, match="write timestamp_ltz for an instant, or timestamp_ntz"):
            spark.range(1).transform(parallel_map(spark_types.same, "t timestamp"))
    finally:
        spark.conf.unset("spark.sql.timestampType")
