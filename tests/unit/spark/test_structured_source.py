"""When a stream's reader plans a batch, with topics that are told here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from keylane.spark.structured import source
from keylane.spark.structured.options import parse_source
from keylane.spark.structured.plans import Plan

if TYPE_CHECKING:
    from keylane.spark.structured.options import TopicPartition

NAME = ("t", 0)


class OneLog:
    """What `Topics` answers."""

    def __init__(self, end: int) -> None:
        self.end = end

    def partitions(self) -> list[TopicPartition]:
        return [NAME]

    def log_starts(self, names: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(names, 0)

    def log_ends(self, names: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(names, self.end)


def reader(log: OneLog, **options: str) -> source.KeylaneStreamReader:
    given = {"kafka.bootstrap.servers": "none:1", "subscribe": "t"} | options
    made = source.KeylaneStreamReader(parse_source(given, streaming=True))
    made._topics = log  # type: ignore[assignment]
    return made


def start() -> dict[str, Any]:
    return Plan("q", 0, {NAME: 0}, {NAME: 0}).to_json()


def end(offset: dict[str, Any]) -> int:
    return Plan.from_json(offset).next[NAME]


def test_a_batch_waits_for_its_least_number_of_records_or_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    log = OneLog(3)
    one = reader(log, minOffsetsPerTrigger="10", maxTriggerDelay="5s")
    first = one.latestOffset(start(), ReadAllAvailable())
    assert end(first) == 3, "the first batch waits for nothing, as in Spark's own source"
    log.end, now = 12, now + 4.9
    assert one.latestOffset(first, ReadAllAvailable()) == first
    log.end = 13
    second = one.latestOffset(first, ReadAllAvailable())
    assert end(second) == 13
    log.end, now = 14, now + 4.9
    assert one.latestOffset(second, ReadAllAvailable()) == second
    now += 0.1
    assert end(one.latestOffset(second, ReadAllAvailable())) == 14


def test_a_batch_has_at_most_its_limit_and_ends_with_what_was_there_at_the_start() -> None:
    log = OneLog(30)
    one = reader(log, maxOffsetsPerTrigger="20")
    one.prepareForTriggerAvailableNow()
    log.end = 50
    first = one.latestOffset(start(), one.getDefaultReadLimit())
    second = one.latestOffset(first, ReadMaxRows(20))
    assert (end(first), end(second)) == (20, 30)
    assert one.latestOffset(second, ReadMaxRows(20)) == second
    assert one.reportLatestOffset() == {"t": {"0": 50}}
