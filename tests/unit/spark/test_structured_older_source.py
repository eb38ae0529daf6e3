"""The streaming source for Spark 4.0 and 4.1, which ask it how far the topics are and nothing else."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")
from keylane.errors import PeerError, UsageError
from keylane.spark import versions
from keylane.spark.structured import older_source
from keylane.spark.structured.older_source import OlderStreamReader
from keylane.spark.structured.options import parse_source
from keylane.spark.structured.plans import Plan

NAME = ("t", 0)


class OneLog:
    """What `Topics` answers."""

    def __init__(self) -> None:
        self.first, self.start, self.end = 0, 0, 5
        self.lost = False
        self.checked: list[Plan] = []

    def partitions(self) -> list[Any]:
        return [NAME]

    epochs: ClassVar[dict[Any, int]] = {}

    def changes(self, *_: Any) -> dict[Any, int]:
        return {}

    def log_starts(self, names: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(names, self.start)

    def ids(self, names: Any) -> dict[str, str]:
        return {topic: "id" for topic, _ in names}

    def ids_for(self, before: Plan, _: object, **__: object) -> dict[str, str]:
        return self.ids(before.next)

    def still_there(self, plan: Plan) -> Plan:
        self.checked.append(plan)
        return plan

    def log_ends(self, names: list[Any], standing: object = None) -> dict[Any, int]:
        return dict.fromkeys(names, self.end)

    def resolve(self, *_: Any) -> tuple[dict[Any, int], dict[Any, Any]]:
        if self.lost:
            raise PeerError("offset 3 is outside")
        return {NAME: self.first}, {}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> OneLog:
    made = OneLog()
    monkeypatch.setattr(versions, "installed", lambda: "4.1.4")
    monkeypatch.setattr(older_source, "Topics", lambda _: made)
    return made


def reader(**options: str) -> OlderStreamReader:
    given = {"kafka.bootstrap.servers": "none:1", "subscribe": "t"} | options
    return OlderStreamReader(parse_source(given, streaming=True))


def read(one: OlderStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    return [part.spans for part in one.partitions(start, end)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value"), [("maxOffsetsPerTrigger", "7"), ("minOffsetsPerTrigger", "7"), ("carryOver", "/7")]
)
def test_what_takes_a_newer_spark_is_refused_by_name(log: OneLog, name: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"option {name}={value} needs Spark 4\.2, and this is 4\.1\.4"):
        reader(**{name: value})


def test_the_first_batch_is_the_same_when_it_is_replayed_wherever_a_query_would_start_by_then(log: OneLog) -> None:
    log.first = 2
    one = reader()
    end = one.latestOffset()  # Spark asks for it first
    assert read(one, one.initialOffset(), end) == [((2, 5),)]
    log.first = log.end = 9  # startingOffsets=latest, after a crash
    again = reader()
    assert read(again, again.initialOffset(), end) == [((2, 5),)]
    assert log.checked[-1] == Plan.from_json(end), "the logs may be other ones by now"
    assert Plan.from_json(again.latestOffset()).start == {NAME: 5}


def test_a_restart_goes_on_where_spark_says(log: OneLog) -> None:
    end = reader().latestOffset()
    one = reader()
    assert read(one, end, end) == [], "how Spark tells the last offset that it has seen"
    assert one.latestOffset() == end, "nothing new: no batch"
    log.end = 8
    after = one.latestOffset()
    assert read(one, end, after) == [((5, 8),)]
    assert not log.checked, "its logs were asked for it just now"
    assert one.latestOffset() == after


def test_available_now_asks_before_it_tells_and_goes_on_all_the_same(log: OneLog) -> None:
    done = reader().latestOffset()
    log.end, log.lost = 8, True  # where a new query would start is gone: this one is not new
    one = reader()
    end = one.latestOffset()
    assert read(one, done, done) == []
    assert read(one, done, end) == [((5, 8),)]
    log.start = 7
    with pytest.raises(PeerError, match="t-0 starts at 7, and 5 is next"):
        read(one, done, end)


def test_a_new_query_that_cannot_start_says_so(log: OneLog) -> None:
    log.lost = True
    one = reader()
    one.latestOffset()
    with pytest.raises(PeerError, match="outside"):
        one.initialOffset()


def test_carried_records_of_a_newer_spark_are_not_passed_over(log: OneLog) -> None:
    plan = Plan("q", 3, {NAME: 0}, {NAME: 4}, redo=2)
    with pytest.raises(UsageError, match=r"the checkpoint has carried records, which needs Spark 4\.2"):
        read(reader(), plan.to_json(), Plan("q", 4, {NAME: 4}, {NAME: 5}).to_json())
