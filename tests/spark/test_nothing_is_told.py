"""A mark in key, value, headers and settings of DataFrames and lanes is in nothing that keylane writes: the driver's
errors with the tasks' tracebacks in them, logs, progress, the checkpoint, carry-over lists, dead letters' headers.
"""

from __future__ import annotations

import json
import logging
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import keylane as kl
from keylane.kafka.admin import Admin
from keylane.kafka.bulk import read_to_end
from keylane.spark import CarryOver, acknowledged, parallel_map
from kit.filling import filling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keylane.broker.process import BrokerProcess

MARK = "MARKER"
RAW = MARK.encode()
SPELLINGS = (MARK, RAW.hex(), MARK.lower())
SECRETS = {"sasl.username": "me", "sasl.password": MARK, "ssl.key.password": MARK}
ONCE = kl.Retries(max_attempts=1)
RECORDS = 3


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]
    Admin({"bootstrap.servers": broker.bootstrap}).create_topics({name: 1, f"{name}-dead": 1})
    with filling(broker.bootstrap) as producer:
        for number in range(RECORDS):
            mark = b"%s-%d" % (RAW, number)
            producer.produce(kl.Output(name, mark, mark * 100, [("h", mark)]))
    return name


def options_of(broker: BrokerProcess, topic: str, **more: str) -> dict[str, str]:
    """Of the source."""
    options = {"kafka.bootstrap.servers": broker.bootstrap, "kafka.group.id": topic, "subscribe": topic}
    options |= {"startingOffsets": "earliest", "includeHeaders": "true", **more}
    return options | {f"kafka.{name}": one for name, one in SECRETS.items()}


def found_in(texts: list[str]) -> list[str]:
    """The lines with the mark in them."""
    lines = (line for text in texts for line in text.splitlines())
    return [line[:400] for line in lines if any(one in line for one in SPELLINGS)]


def failing(row: Any) -> Any:
    raise ValueError(f"no such flight, in {len(row)} columns")


def wrong_kind(row: Any) -> Any:
    return bytes(row.value)


def wrong_column(row: Any) -> Any:
    return {"number": bytes(row.value).decode()}


def too_many(row: Any) -> Any:
    return (row.value, row.key, row.headers)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (failing, r"-0@\d: failed after 1 attempts: ValueError: no such flight"),
        (wrong_kind, r"-0@\d: failed after 1 attempts: Fatal: the function returned a value of type bytes"),
        (wrong_column, "the function returned a value of type str for the column number, which is int64"),
        (too_many, r"-0@\d: failed after 1 attempts: Fatal: the function returned 3 values"),
    ],
)
@pytest.mark.parametrize("workers", [None, pytest.param(kl.Processes(), marks=pytest.mark.full)])
def test_a_failed_row_is_named_and_not_shown(
    spark: SparkSession, broker: BrokerProcess, topic: str, capfd: Any, function: Any, says: str, workers: Any
) -> None:
    frame = spark.read.format("keylane").options(**options_of(broker, topic)).load()
    step = parallel_map(function, "number bigint", retries=ONCE, workers=workers)
    with pytest.raises(Exception, match=says) as raised:
        frame.transform(step).collect()
    written = capfd.readouterr()
    texts = [repr(raised.value), *traceback.format_exception(raised.value), written.out, written.err]
    assert found_in(texts) == []


def test_rows_without_the_sources_columns_are_numbered(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(MARK,)] * 3, "s string")
    with pytest.raises(Exception, match=r"row \d of Spark.s partition \d+: failed after 1 attempts") as raised:
        frame.transform(parallel_map(failing, "number bigint", retries=ONCE)).collect()
    assert found_in([repr(raised.value), *traceback.format_exception(raised.value)]) == []


def test_a_stream_with_carry_over_tells_nothing(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path, capfd: Any, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG, "keylane")
    carry = CarryOver(
        str(tmp_path / "lists"),
        dead_letter=kl.DeadLetter(f"{topic}-dead"),
        kafka={"bootstrap.servers": broker.bootstrap, **SECRETS},
    )
    options = options_of(broker, topic, carryOver=str(tmp_path / "lists"))
    step = parallel_map(failing, "number bigint", ordering="key", key="key", retries=ONCE, carry_over=carry)
    query = (
        spark.readStream.format("keylane")
        .options(**options)
        .load()
        .transform(step)
        .writeStream.foreachBatch(acknowledged(lambda frame, _: frame.collect(), carry_over=carry))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert query.exception() is None
    texts = [repr(carry), repr(query.lastProgress), *map(repr, query.recentProgress)]
    texts += [file.read_bytes().decode(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    dead = [record for some in read_to_end(broker.bootstrap, f"{topic}-dead") for record in some]
    assert len(dead) == RECORDS
    texts += [f"{name}={value!r}" for one in dead for name, value in one.headers if name.startswith("keylane.")]
    written = capfd.readouterr()
    assert found_in([*texts, caplog.text, written.out, written.err]) == []


def fails_on_lanes(record: kl.Record) -> Any:
    raise ValueError(f"cannot do {record!r}")


def returns_wrong_on_lanes(record: kl.Record) -> Any:
    return {record.key: record.value}


@pytest.mark.parametrize("handler", [fails_on_lanes, returns_wrong_on_lanes])
def test_lanes_tell_nothing(
    spark: SparkSession, broker: BrokerProcess, topic: str, capfd: Any, caplog: Any, handler: Callable[..., Any]
) -> None:
    caplog.set_level(logging.DEBUG, "keylane")
    pipeline = kl.Pipeline(
        kafka={"bootstrap.servers": broker.bootstrap, "group.id": topic, **SECRETS},
        topics=[topic],
        handler=handler,
        offset_reset="earliest",
        retries=ONCE,
    )
    query = kl.spark.start(pipeline, spark, lanes=1, trigger={"availableNow": True})
    with pytest.raises(kl.HandlerError, match=f"{topic}-0@\\d: ") as raised:
        query.awaitTermination(120)
    texts = [repr(query), repr(query.exception()), repr(query.snapshot()), json.dumps(query.recentProgress)]
    texts += traceback.format_exception(raised.value)
    written = capfd.readouterr()
    assert found_in([*texts, caplog.text, written.out, written.err]) == []


def test_lanes_that_would_feed_themselves_end(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    kafka = {"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-self"}
    pipeline = kl.Pipeline(
        kafka=kafka, topics=[topic], handler=lambda record: kl.Output(topic, record.key), offset_reset="earliest"
    )
    query = kl.spark.start(pipeline, spark, lanes=1, trigger={"availableNow": True})
    with pytest.raises(kl.HandlerError, match=f"an Output is for '{topic}', which the pipeline reads itself"):
        query.awaitTermination(120)
    assert Admin(kafka).log_ends([(topic, 0)], read_committed=False) == {(topic, 0): RECORDS}, "nothing was produced"
