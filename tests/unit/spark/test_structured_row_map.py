"""`parallel_map`'s options: those of every flow, and what rows cannot have."""

from __future__ import annotations

import inspect
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import keylane as kl
from keylane.http import Calls, Request
from keylane.spark import CarryOver, parallel_map
from keylane.spark.structured.parallel_map import RowMap
from keylane.spark.structured.row_task import STEPS_KEPT, MapTask, limit_of

HERE = {"bootstrap.servers": "127.0.0.1:9092"}


def decode(data: bytes | None, _: Any) -> str:
    return (data or b"").decode()


DEAD = {"on_exhausted": kl.DeadLetter("dead"), "kafka": HERE}
RECORD = {"topic": "string", "partition": "int", "offset": "bigint"}


def function(row: Any) -> Any:
    return row


def ask(row: Any) -> Request:
    return Request("GET", f"http://127.0.0.1/{row}")


@pytest.mark.parametrize("delivery", ["at_most_once", "almost_once", "transactional"])
def test_guarantees_that_dataframes_cannot_give_are_refused(delivery: Any) -> None:
    with pytest.raises(kl.UsageError, match=" is for pipelines in one process and in lanes: "):
        parallel_map(function, "a int", delivery=delivery)
    assert parallel_map(function, "a int").guarantee == "at_least_once"
    assert parallel_map(function, "a int", delivery=kl.ExactlyOnce("a.db")).guarantee == "exactly_once"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rates": kl.Rates(per_key=1)}, "Rates.per_key needs ordering='key'"),
        ({"rates": kl.Rates(per_partition=1), "ordering": "key", "key": "a"}, "needs ordering='partition'"),
        ({"traversal": "depth_first"}, "rows without an order run as they come"),
        ({"on_exhausted": kl.DeadLetter("dead")}, "needs kafka={'bootstrap.servers': …}: where its topic is"),
        ({"kafka": HERE}, "kafka=… is for dead letters"),
        ({**DEAD, "kafka": "127.0.0.1:9092"}, "give a dict of librdkafka settings"),
        ({"on_exhausted": kl.Skip(), "outcome": True}, "a row that fails is a row, or none"),
        ({"on_exhausted": kl.Skip(), "carry_over": CarryOver("/lists")}, "give CarryOver(dead_letter=DeadLetter(…)"),
        ({"outcome": True, "carry_over": CarryOver("/lists")}, "a row that fails is carried"),
        ({"handler_timeout_ms": 5}, "what can be ended, and a thread cannot"),
        ({"handler": Calls(request=ask)}, "a row becomes what on_response returns"),
        ({"value_deserializer": 5}, "give a function of (bytes or None, context)"),
        ({"value_deserializer": function}, "give a function of (bytes or None, context)"),
        ({"threads": 4}, "parallel_map has no option 'threads': give workers=Threads(count)"),
        ({"timeout_ms": 4}, "parallel_map has no option 'timeout_ms': give handler_timeout_ms"),
        ({"topics": ["t"]}, "parallel_map has no option 'topics': it takes handler, "),
    ],
)
def test_what_rows_cannot_have_is_refused_with_the_reason(options: dict[str, Any], says: str) -> None:
    with pytest.raises(kl.UsageError) as error:
        parallel_map(options.get("handler", function), "a int", **{k: v for k, v in options.items() if k != "handler"})
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "columns", "says"),
    [
        (DEAD, {"id": "bigint"}, "has no column 'value', which a dead letter's value is made of"),
        (DEAD, {"value": "string", "Key": "string"}, "has a column 'Key', and a dead letter is made of 'key': rename"),
        (DEAD, {"value": "int"}, "the column value is int, and a dead letter's is binary or string"),
        (DEAD, {"value": "binary", "headers": "string"}, "the column headers is string"),
        ({"value_deserializer": decode}, {"value": "string", "topic": "string"}, "the column value is string"),
        ({"key_deserializer": decode}, RECORD, "the column key is not there: give it the source's bytes"),
        ({"key_deserializer": decode}, {"key": "binary"}, "keep the source's column topic"),
        ({"tracing": "on"}, {"topic": "string"}, "the frame has no column offset, partition"),
    ],
)
def test_what_a_frame_lacks_is_named(options: dict[str, Any], columns: dict[str, str], says: str) -> None:
    frame: Any = SimpleNamespace(columns=list(columns), dtypes=list(columns.items()))
    with pytest.raises(kl.UsageError) as error:
        parallel_map(function, "a int", **options)(frame)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_it_has_the_options_of_every_flow() -> None:
    known = set(inspect.signature(parallel_map).parameters)
    assert {one.name for one in fields(kl.Flow)} < known
    assert known == {one.name for one in fields(RowMap) if one.init}


def test_the_settings_of_dead_letters_are_not_shown() -> None:
    step = parallel_map(function, "a int", on_exhausted=kl.DeadLetter("dead"), kafka=HERE | {"sasl.password": "secret"})
    assert "secret" not in repr(step)


def test_a_process_keeps_the_automatic_limits_of_the_steps_that_ran_last() -> None:
    first = limit_of("first", 8)
    assert limit_of("first", 8) is first
    for number in range(STEPS_KEPT):
        limit_of(str(number), 8)
    assert limit_of("first", 8) is not first
    assert limit_of.cache_info().currsize == STEPS_KEPT


def test_the_automatic_limit_of_threads_is_at_most_as_many_as_there_are() -> None:
    schema = StructType([StructField("n", LongType())])
    step = RowMap(lambda row: (row.n,), schema, max_concurrency="auto", workers=kl.Threads(3))
    limit_of.cache_clear()
    made = MapTask(step, schema, schema)(iter([pa.RecordBatch.from_pydict({"n": [*range(10)]})]))
    assert sum(one.num_rows for one in made) == 10
    found = limit_of.cache_info().misses
    limit_of(step.counts.step, 3)
    assert limit_of.cache_info().misses == found, "the task made that one"


def test_counts_of_tasks_are_refused_where_there_is_no_accumulator() -> None:
    class Remote:
        """As Spark Connect's session."""

        def __getattr__(self, name: str) -> None:
            raise AttributeError(name)

    session: Any = Remote()
    step = RowMap(function, "a int")
    assert step.snapshot() == kl.Snapshot(), "before it is applied"
    step.counts.begin(session)
    step.counts.add(kl.Snapshot(processed=1))
    with pytest.raises(kl.UsageError, match="Spark Connect has no accumulators"):
        step.snapshot()
