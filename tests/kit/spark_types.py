"""Every type of Spark through `parallel_map`, held against `collect()` and Spark's own sort and groups.

The idea: one column a type, the same few rows, with the values that other libraries lose: the hour that comes twice,
the end of time, both zeros, NaN, nulls inside. `differences` compares them in the zone of its process.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import VariantVal

import keylane as kl
from keylane.spark import parallel_map
from keylane.spark.structured.kept_rows import KeptOutputs
from keylane.spark.structured.ordering import KEY, with_keys
from keylane.spark.structured.values import Instant
from keylane.spark.versions import installed, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

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
    frame = frame_of(spark, types)
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
    """Groups and order by each type."""
    for one in types:
        if not one.has_order:
            continue
        frame, name = frame_of(spark, [one]), f"`{one.name}`"
        grouped = frame.where(f"{name} is not null").groupBy(name).agg({"id": "collect_list"}).toDF("v", "ids")
        groups = {frozenset(row.ids) for row in grouped.collect()}
        keyed = with_keys(frame, [one.name])
        by = KEY if KEY in keyed.columns else one.name
        ours: dict[Any, set[int]] = {}
        for row in keyed.collect():
            if row[by] is not None:
                ours.setdefault(row[by], set()).add(row.id)
        if {frozenset(some) for some in ours.values()} != groups:
            yield f"{one.name}: keys {[*map(sorted, ours.values())]}, and Spark groups {[*map(sorted, groups)]}"
        within = frame.selectExpr("'k' AS k", "id", f"{name} AS v").repartition("k").sortWithinPartitions("v", "id")
        step = parallel_map(in_turn, "id int, at bigint", ordering="key", key="k", order_by=("v", "id"))
        ran = frame.selectExpr("'k' AS k", "id", f"{name} AS v").transform(step).collect()
        order = [row.id for row in sorted(ran, key=lambda row: row.at)]
        if order != (known := [row.id for row in within.collect()]):
            yield f"{one.name}: ran in the order {order}, and Spark sorts {known}"


def main() -> None:
    """Prints the differences in each zone of sessions, as JSON, under the TZ of this process."""
    spark = kl.spark.session("local[2]", **{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
    found = []
    spark.conf.set("spark.sql.timeType.enabled", "true")
    for zone in ZONES:
        spark.conf.set("spark.sql.session.timeZone", zone)
        found += [f"{zone}: {one}" for one in differences(spark, here(), list(WAYS))]
        found += [f"{zone}: {one}" for one in differences_of_order(spark, here())]
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
