"""When a stream's reader plans a batch, with topics that are told here."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from keylane.spark.structured import source
from keylane.spark.structured.carry_lists import CarryList, Lists
from keylane.spark.structured.options import parse_source
from keylane.spark.structured.plans import Plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keylane.spark.structured.options import TopicPartition

NAME = ("t", 0)


class OneLog:
    """What `Topics` answers."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.checked: list[Plan] = []

    def partitions(self) -> list[TopicPartition]:
        return [NAME]

    epochs: ClassVar[dict[Any, int]] = {}

    def changes(self, *_: Any) -> dict[Any, int]:
        return {}

    def log_starts(self, names: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(names, 0)

    def ids(self, names: Any) -> dict[str, str]:
        return {topic: "id" for topic, _ in names}

    def ids_for(self, before: Plan, _: object, **__: object) -> dict[str, str]:
        return self.ids(before.next)

    def still_there(self, plan: Plan) -> Plan:
        self.checked.append(plan)
        return plan

    def log_ends(self, names: list[TopicPartition], standing: object = None) -> dict[TopicPartition, int]:
        return dict.fromkeys(names, self.end)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Callable[..., source.KeylaneStreamReader]:
    def make(log: OneLog, **options: str) -> source.KeylaneStreamReader:
        monkeypatch.setattr(source, "Topics", lambda _: log)
        given = {"kafka.bootstrap.servers": "none:1", "subscribe": "t"} | options
        return source.KeylaneStreamReader(parse_source(given, streaming=True))

    return make


def start() -> dict[str, Any]:
    return Plan("q", 0, {NAME: 0}, {NAME: 0}).to_json()


def end(offset: dict[str, Any]) -> int:
    return Plan.from_json(offset).next[NAME]


def test_a_batch_waits_for_its_least_number_of_records_or_its_time(
    monkeypatch: pytest.MonkeyPatch, reader: Callable[..., source.KeylaneStreamReader]
) -> None:
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


def test_a_plan_of_an_earlier_run_is_held_against_the_logs_of_now(
    reader: Callable[..., source.KeylaneStreamReader],
) -> None:
    log = OneLog(3)
    one = reader(log)
    planned = one.latestOffset(start(), ReadAllAvailable())
    one.partitions(start(), planned)
    assert not log.checked
    reader(log).partitions(start(), planned)
    assert log.checked == [Plan.from_json(planned)]


def test_a_batch_has_at_most_its_limit_and_ends_with_what_was_there_at_the_start(
    reader: Callable[..., source.KeylaneStreamReader],
) -> None:
    log = OneLog(30)
    one = reader(log, maxOffsetsPerTrigger="20")
    one.prepareForTriggerAvailableNow()
    log.end = 50
    first = one.latestOffset(start(), one.getDefaultReadLimit())
    second = one.latestOffset(first, ReadMaxRows(20))
    assert (end(first), end(second)) == (20, 30)
    assert one.latestOffset(second, ReadMaxRows(20)) == second
    assert one.reportLatestOffset() == {"t": {"0": 50}}


class Clock:
    """Wall time that passes only while this thread sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_700_000_000.0
        self._thread, self._others_sleep = threading.get_ident(), time.sleep
        self.slept: list[float] = []
        monkeypatch.setattr("time.time", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        if threading.get_ident() != self._thread:
            self._others_sleep(seconds)
            return
        self.slept.append(seconds)
        self.now += seconds


def test_available_now_waits_for_what_is_carried_and_ends_when_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[..., source.KeylaneStreamReader]
) -> None:
    clock = Clock(monkeypatch)
    lists = Lists(str(tmp_path))
    one = reader(OneLog(30), carryOver=str(tmp_path))
    one.prepareForTriggerAvailableNow()
    first = one.latestOffset(start(), ReadAllAvailable())
    due_ms = int((clock.now + 2) * 1000)
    lists.write_once(CarryList(0, "q", 1, {NAME: {7: (1, due_ms + 500), 9: (1, due_ms)}}))
    second = one.latestOffset(first, ReadAllAvailable())
    assert Plan.from_json(second) == Plan("q", 2, {NAME: 30}, {NAME: 30}, redo=0, ids={"t": "id"})
    assert sum(clock.slept) == pytest.approx(2), "until the first of them is due"
    lists.write_once(CarryList(1, "q", 2, {NAME: {7: (2, 0)}}))
    third = one.latestOffset(second, ReadAllAvailable())
    assert Plan.from_json(third).redo == 1
    assert sum(clock.slept) == pytest.approx(2), "what is due does not wait"
    lists.write_once(CarryList(2, "q", 3))
    assert one.latestOffset(third, ReadAllAvailable()) == third, "the query ends"


def test_a_query_without_an_end_is_not_held_up_by_what_is_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[..., source.KeylaneStreamReader]
) -> None:
    """New records must not wait for the delay of others."""
    clock = Clock(monkeypatch)
    log = OneLog(30)
    one = reader(log, carryOver=str(tmp_path))
    first = one.latestOffset(start(), ReadAllAvailable())
    Lists(str(tmp_path)).write_once(CarryList(0, "q", 1, {NAME: {7: (1, int(clock.now * 1000) + 2_000)}}))
    assert one.latestOffset(first, ReadAllAvailable()) == first
    log.end = 31
    assert end(one.latestOffset(first, ReadAllAvailable())) == 31
    assert clock.slept == []
