"""Every type of Spark through `parallel_map`, held against `collect()` and Spark's own sort and groups.

The idea: one column a type, the same few rows, with the values that other libraries lose: the hour that comes twice,
the end of time, both zeros, NaN, nulls inside. `differences` compares them in the zone of its process.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import hex as hexadecimal
from pyspark.sql.functions import lit
from pyspark.sql.types import VariantVal

import keylane as kl
from keylane.broker.process import BrokerProcess
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import BulkProducer, read_to_end
from keylane.spark import parallel_map
from keylane.spark.structured.kept_rows import KeptOutputs
from keylane.spark.structured.ordering import KEY, with_keys
from keylane.spark.structured.values import Instant
from keylane.spark.versions import installed, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
INSTANTS = "timestamp_seconds(v)", [0, 1762061400, 1762065000, 1741503600, -2208988800, 253402214400, 1762061400]


@dataclass(frozen=True)
class Type:
    name: str
    values: Sequence[str]
    """SQL; repeated for as many rows as there are."""
    has_order: bool = True
    """Whether Spark sorts and groups by it."""
    since: tuple[int, int] = (4, 0)


def _instants(of: str) -> list[str]:
    made, seconds = INSTANTS
    return [of.format(made.replace("v", f"{one}L")) for one in seconds]


TYPES = [
    Type("boolean", ["true", "false", "null"]),
    Type("tinyint", ["-128Y", "127Y", "null"]),
    Type("smallint", ["-32768S", "32767S", "null"]),
    Type("int", ["-2147483648", "2147483647", "null"]),
    Type("bigint", ["-9223372036854775807L", "9223372036854775807L", "null"]),
    Type("float", ["float('NaN')", "float(-0.0)", "float(0.0)", "float('-inf')", "null", "float(1.1)"]),
    Type("double", ["double('NaN')", "-0.0D", "0.0D", "double('inf')", "null", "-1.1D"]),
    Type("decimal(38,18)", ["cast(1.5 as decimal(38,18))", "cast(-99999999999999999999 as decimal(38,18))", "null"]),
    Type("string", ["'b'", "''", "null", "'é'", "'\\U0001F600'", "'ｚ'"]),
    Type("no text", ["cast(X'ff61' as string)", "'a'", "null", "cast(X'c3' as string)"]),
    Type("UTF8_LCASE", [f"{one} collate UTF8_LCASE" for one in ("'b'", "'A'", "'a'", "'B'", "null")]),
    Type("UNICODE_CI", [f"{one} collate UNICODE_CI" for one in ("'é'", "'E'", "'É'", "'e'", "null")]),
    Type("binary", ["X'ff'", "X''", "X'00'", "null"]),
    Type("date", ["date'0001-01-01'", "date'9999-12-31'", "date'1582-10-10'", "null"]),
    Type("timestamp", [*_instants("{}"), "null"]),
    Type("timestamp_ntz", ["timestamp_ntz'2025-11-02 01:30:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'", "null"]),
    Type("interval day to second", ["interval '1 02:03:04.5' day to second", "interval '-1' day", "null"]),
    Type("time", ["time'23:59:59.999999'", "time'00:00:00'", "null"], since=(4, 1)),
    Type("variant", ["parse_json('{\"a\": [1, null]}')", "null", "parse_json('null')"], has_order=False),
    Type("array<timestamp>", [f"array({one}, null)" for one in _instants("{}")] + ["null", "array()"]),
    Type("struct", [f"named_struct('t', {one}, 'd', date'2025-11-02')" for one in _instants("{}")] + ["null"]),
    Type(
        "array<array<double>>", ["array(array(-0.0D), null)", "array(array(0.0D), null)", "array(array(double('NaN')))"]
    ),
    Type("map", [f"map('a', {one}, 'b', null)" for one in _instants("{}")] + ["null"], has_order=False),
    Type("map of dates", ["map(date'2025-11-02', named_struct('x', 1))", "null"], has_order=False),
]
ROWS = 8


def here() -> list[Type]:
    """Those that this Spark has."""
    return [one for one in TYPES if one.since <= version_of(installed())]


def frame_of(spark: SparkSession, types: Sequence[Type]) -> DataFrame:
    """A row an id, a column a type, in one task."""
    rows = []
    for number in range(ROWS):
        values = [f"{one.values[number % len(one.values)]} AS `{one.name}`" for one in types]
        rows.append(f"SELECT {number} AS id, {', '.join(values)}")
    return spark.sql(" UNION ALL ".join(rows)).coalesce(1)


def shown(value: Any) -> str:
    """Its type, its text, and where it is one, which of two instants."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(one)}: {shown(other)}" for one, other in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    if isinstance(value, VariantVal):
        return value.toJson()
    return f"{type(value).__name__} {value!r} {getattr(value, 'fold', '')}"


def same(row: Any) -> Any:
    return tuple(row)


async def same_async(row: Any) -> Any:
    return tuple(row)


def same_of_batch(rows: list[Any]) -> list[Any]:
    return [tuple(row) for row in rows]


def told(row: Any) -> Any:
    return {"id": row.id, "values": [shown(one) for one in row]}


RECORD_SHOWN = "key binary, values array<string>"


def told_of_record(row: Any) -> Any:
    return {"key": row.key, "values": [shown(one) for one in row]}


def in_turn(row: Any) -> Any:
    return (row.id, time.monotonic_ns())


WAYS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "threads": (same, {}),
    "asyncio": (same_async, {}),
    "processes": (same, {"workers": kl.Processes(1)}),
    "batches": (same_of_batch, {"batch": kl.Batch(3)}),
    "outcome": (same, {"outcome": True}),
}


def differences(spark: SparkSession, types: Sequence[Type], ways: Sequence[str]) -> Iterator[str]:
    """What is not as Spark has it, in the session's zone and this process's."""
    frame = frame_of(spark, types).localCheckpoint()
    expected = {row.id: [shown(one) for one in row] for row in frame.collect()}
    for row in frame.transform(parallel_map(told, "id int, values array<string>")).collect():
        for one, seen, known in zip(types, row["values"][1:], expected[row.id][1:], strict=True):
            if seen != known:
                yield f"{one.name}: the function saw {seen}, and collect() has {known}"
    texts = ["id", *(f"cast(`{one.name}` as string) as c{at}" for at, one in enumerate(types))]
    in_text = {row.id: tuple(row) for row in frame.selectExpr(*texts).collect()}
    for way in ways:
        function, options = WAYS[way]
        made = frame.transform(parallel_map(function, frame.schema, **options))
        for row in made.selectExpr(*texts).collect():
            for one, seen, text in zip(types, tuple(row)[1:], in_text[row.id][1:], strict=True):
                if seen != text:
                    yield f"{one.name}, {way}: handed on as {seen}, and Spark has {text}"
    yield from _of_kept_rows(frame, types)


def _of_kept_rows(frame: DataFrame, types: Sequence[Type]) -> Iterator[str]:
    outputs = KeptOutputs(frame.schema, None)
    rows = [tuple(row) for row in frame.collect()]
    again = outputs.again(outputs.kept(rows))
    if outputs.kept(again) != outputs.kept(rows):
        yield f"kept rows of {[one.name for one in types]} come back as others"
    if any(isinstance(one, Instant) for row in rows for one in row):
        yield "collect() has instants of ours"


def differences_of_order(spark: SparkSession, types: Sequence[Type]) -> Iterator[str]:
    """Groups and order by each type. All types at once: most of a job's time is its start."""
    with_order = [one for one in types if one.has_order]
    frame = frame_of(spark, with_order).localCheckpoint()
    groups, keys, sorted_by_spark, ran = [], [], [], []
    for one in with_order:
        name, own = f"`{one.name}`", lit(one.name).alias("type")
        grouped = frame.where(f"{name} is not null").groupBy(name).agg({"id": "collect_list"}).toDF("v", "ids")
        groups.append(grouped.select(own, "ids"))
        keyed = with_keys(frame, [one.name])
        by = KEY if KEY in keyed.columns else one.name
        keys.append(keyed.select(own, "id", hexadecimal(f"`{by}`").alias("key")))
        alone = frame.selectExpr("'k' AS k", "id", f"{name} AS v")
        sorted_by_spark.append(alone.repartition("k").sortWithinPartitions("v", "id").select(own, "id"))
        step = parallel_map(in_turn, "id int, at bigint", ordering="key", key="k", order_by=("v", "id"))
        ran.append(alone.transform(step).select(own, "id", "at"))
    sparks, ours = _by_type(groups), _by_type(keys)
    expected, order = _by_type(sorted_by_spark), _by_type(ran)
    for one in with_order:
        same: dict[Any, list[int]] = {}
        for row in ours[one.name]:
            if row.key is not None:
                same.setdefault(row.key, []).append(row.id)
        found, known = (sorted(map(sorted, some)) for some in (same.values(), [row.ids for row in sparks[one.name]]))
        if found != known:
            yield f"{one.name}: keys {found}, and Spark groups {known}"
        in_turn_ids = [row.id for row in sorted(order[one.name], key=lambda row: row.at)]
        if in_turn_ids != (sorted_ids := [row.id for row in expected[one.name]]):
            yield f"{one.name}: ran in the order {in_turn_ids}, and Spark sorts {sorted_ids}"


def _by_type(frames: Sequence[DataFrame]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in reduce(DataFrame.union, frames).collect():
        found.setdefault(row.type, []).append(row)
    return found


def fails(row: Any) -> Any:
    raise ValueError("not today")


def differences_of_topics(spark: SparkSession, types: Sequence[Type], servers: str, topic: str) -> Iterator[str]:
    """What a sink, a dead letter and the source make of a text of each value."""
    frame = frame_of(spark, types).localCheckpoint()
    texts = [
        f"named_struct('key', '{one.name} ' || id, 'value', cast(`{one.name}` as string), "
        f"'headers', array(named_struct('key', 'type', 'value', cast('{one.name}' as binary))))"
        for one in types
    ]
    records = frame.selectExpr(f"inline(array({', '.join(texts)}))")
    expected = {
        (row.key.encode(), None if row.value is None else bytes(row.value), (("type", bytes(row.headers[0].value)),))
        for row in records.selectExpr("key", "cast(value as binary) value", "headers").collect()
    }
    kafka = {"bootstrap.servers": servers}
    sink = {f"kafka.{name}": value for name, value in kafka.items()}
    records.write.format("keylane").mode("append").options(**sink, topic=topic).save()
    buried = kl.DeadLetter(f"{topic}.dead")
    step = parallel_map(fails, "n int", on_exhausted=buried, kafka=kafka, retries=kl.Retries(max_attempts=1))
    assert records.transform(step).collect() == []
    for name in (topic, f"{topic}.dead"):
        yield from _of_topic(servers, name, expected)
    with BulkProducer(servers) as producer:
        for at, seconds in enumerate(one for one in INSTANTS[1] if 0 < one < time.time()):
            producer.produce(kl.Output(topic, key=b"at %d" % at, value=b"", timestamp_ms=1000 * seconds))
    source = spark.read.format("keylane").options(**sink, subscribe=topic, includeHeaders="true").load()
    seen = {
        bytes(row.key): row["values"] for row in source.transform(parallel_map(told_of_record, RECORD_SHOWN)).collect()
    }
    for row in source.collect():
        if seen[bytes(row.key)] != [shown(one) for one in row]:
            yield f"{row.key}: the function saw {seen[bytes(row.key)]}, and collect() has {[shown(one) for one in row]}"


def differences_of_streams(spark: SparkSession, servers: str, topic: str) -> Iterator[str]:
    """What streams write of the strings of a topic that `differences_of_topics` has made, at least and exactly once."""
    options = {"kafka.bootstrap.servers": servers}
    given = spark.readStream.format("keylane").options(
        **options, subscribe=topic, startingOffsets="earliest", includeHeaders="true"
    )
    frame = given.load().selectExpr("cast(key as string) key", "cast(value as string) value", "headers")
    expected = {(one.key, one.value, tuple(one.headers[:1])) for some in read_to_end(servers, topic) for one in some}
    for delivery, more in (("at_least_once", {}), ("exactly_once", {"sinkName": topic})):
        name = f"{topic}.{delivery}"
        Admin({"bootstrap.servers": servers}).create_topics({name: 1})
        with tempfile.TemporaryDirectory() as folder:
            writer = frame.writeStream.format("keylane").options(
                **options, **more, topic=name, delivery=delivery, checkpointLocation=folder
            )
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(120)
        yield from _of_topic(servers, name, expected)


def _of_topic(servers: str, topic: str, expected: set[tuple[Any, ...]]) -> Iterator[str]:
    found = [(one.key, one.value, tuple(one.headers[:1])) for some in read_to_end(servers, topic) for one in some]
    if len(found) != len(expected) or {*found} != expected:
        yield f"{topic} has {sorted({*found} - expected, key=repr)} in place of {sorted(expected - {*found}, key=repr)}"


def main() -> None:
    """Prints the differences in each zone of sessions, as JSON, under the TZ of this process."""
    spark = kl.spark.session("local[2]", **{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
    found = []
    spark.conf.set("spark.sql.timeType.enabled", "true")
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder)) as broker:
        for number, zone in enumerate(ZONES):
            spark.conf.set("spark.sql.session.timeZone", zone)
            topic = f"types-{number}"
            Admin({"bootstrap.servers": broker.bootstrap}).create_topics({topic: 1, f"{topic}.dead": 1})
            for some in (
                differences(spark, here(), list(WAYS)),
                differences_of_order(spark, here()),
                differences_of_topics(spark, here(), broker.bootstrap, topic),
            ):
                found += [f"{zone}: {one}" for one in some]
        found += [*differences_of_streams(spark, broker.bootstrap, topic)]
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
