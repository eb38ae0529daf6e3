"""Options of the source: Spark's names and rules, and errors that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.errors import UsageError
from keylane.spark.structured.options import Position, SourceOptions, parse_source

BASE = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def parse(options: dict[str, str], *, streaming: bool = True) -> SourceOptions:
    return parse_source(BASE | options, streaming=streaming)


def test_names_are_read_in_any_case() -> None:
    odd = {"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": "a, b", "MAXoffsetsPERtrigger": "5"}
    found = parse_source(odd, streaming=True)
    assert (found.settings, found.subscription.topics) == ({"bootstrap.servers": "h:1"}, ("a", "b"))
    assert found.max_offsets == 5


def test_defaults_are_sparks() -> None:
    stream, batch = parse({}), parse({}, streaming=False)
    assert (stream.start.name, batch.start.name, batch.end.name) == ("latest", "earliest", "latest")
    assert (stream.fail_on_data_loss, stream.include_headers, stream.max_offsets) == (True, False, None)
    assert (stream.max_trigger_delay_ms, stream.retries, stream.retry_interval_ms) == (900_000, 3, 10)


def test_every_option_has_its_effect() -> None:
    found = parse({
        "startingOffsetsByTimestampStrategy": "LATEST", "minOffsetsPerTrigger": "2", "maxTriggerDelay": "2m",
        "minPartitions": "7", "maxRecordsPerPartition": "9", "failOnDataLoss": "False", "includeHeaders": "true",
        "groupIdPrefix": "p", "kafkaConsumer.pollTimeoutMs": "77", "fetchOffset.numRetries": "0",
        "fetchOffset.retryIntervalMs": "8", "carryOver": "/c", "kafka.group.id": "g", "kafka.fetch.max.wait.ms": "3",
    })  # fmt: skip
    assert found.settings == {"bootstrap.servers": "h:1", "group.id": "g", "fetch.wait.max.ms": "3"}
    assert (found.no_offset_at_time, found.min_offsets, found.max_trigger_delay_ms) == ("latest", 2, 120_000)
    assert (found.min_partitions, found.max_records_per_partition, found.fail_on_data_loss) == (7, 9, False)
    assert (found.include_headers, found.group_id_prefix, found.poll_timeout_ms) == (True, "p", 77)
    assert (found.retries, found.retry_interval_ms, found.carry_over, found.group_id) == (0, 8, "/c", "g")


def test_timestamps_go_before_offsets_by_timestamp_and_those_before_offsets() -> None:
    options = {"startingOffsets": "earliest"}
    assert parse(options).start == Position("startingOffsets", name="earliest")
    options["startingOffsetsByTimestamp"] = '{"t":{"0":1000}}'
    assert parse(options).start == Position("startingOffsetsByTimestamp", times={("t", 0): 1000})
    options["startingTimestamp"] = "2000"
    assert parse(options).start == Position("startingTimestamp", time=2000)


def test_offsets_by_partition() -> None:
    assert parse({"startingOffsets": '{"a":{"0":-2,"1":5},"b":{"3":-1}}'}).start.offsets == {
        ("a", 0): -2,
        ("a", 1): 5,
        ("b", 3): -1,
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribePattern": "t.*"}, "exactly one .* there is subscribe and subscribePattern"),
        ({"subscribe": " , "}, "name at least one topic"),
        ({"subscrib": "t"}, "option subscrib='t' is not known: did you mean subscribe"),
        ({"startingOffsets": "newest"}, "startingOffsets='newest': give earliest, latest, committed or JSON"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "give numbers by partition"),
        ({"startingOffsets": '{"t":[0]}'}, "give numbers by partition"),
        ({"startingOffsets": "committed"}, "kafka.group.id"),
        ({"startingTimestamp": "soon"}, "startingTimestamp='soon': give a whole number"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "give error or latest"),
        ({"endingOffsets": "latest"}, "is for batch queries"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "is more than"),
        ({"maxTriggerDelay": "2 fortnights"}, "give a time like"),
        ({"failOnDataLoss": "maybe"}, "give true or false"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "acknowledged"),
        ({"kafka.value.deserializer": "x"}, "DataFrame operations"),
        ({"kafka.interceptor.classes": "x"}, "interceptors"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
    ],
)
def test_what_cannot_work_is_refused_by_name(options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": "latest"}, "cannot start at the latest"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "cannot start at the latest"),
        ({"endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "cannot end at the earliest"),
        ({"carryOver": "/c"}, "is for streaming"),
    ],
)
def test_what_a_batch_query_cannot_do(options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(options, streaming=False)


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(parse({"kafka.sasl.password": "secret"}))


def test_partitions_of_a_subscription() -> None:
    counts = {"flights": 2, "flights-2": 1, "other": 1}
    assert subscription(subscribe="other,flights").of(counts) == [("flights", 0), ("flights", 1), ("other", 0)]
    assert subscription(subscribePattern="flights.*").of(counts) == [("flights", 0), ("flights", 1), ("flights-2", 0)]
    assert subscription(subscribePattern="flight").of(counts) == []
    assert subscription(assign='{"flights":[1]}').of(counts) == [("flights", 1)]
    with pytest.raises(UsageError, match="topic 'gone' does not exist"):
        subscription(subscribe="gone").of(counts)
    with pytest.raises(UsageError, match="has no partition 5, it has 2"):
        subscription(assign='{"flights":[5]}').of(counts)


@pytest.mark.parametrize("text", ['{"t":0}', '{"t":["0"]}', '{"t":[-1]}', "{}", "t"])
def test_an_assignment_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="assign="):
        subscription(assign=text)


def subscription(**options: str) -> Any:
    return parse_source({"kafka.bootstrap.servers": "h:1"} | options, streaming=True).subscription


def test_offsets_must_name_each_partition() -> None:
    position = Position("startingOffsets", offsets={("t", 0): 1, ("x", 0): 1})
    with pytest.raises(UsageError, match=r"does not name t-1 and names x-0, which the query does not read"):
        position.check_covers([("t", 0), ("t", 1)])
    position.check_covers([("t", 0), ("x", 0)])
