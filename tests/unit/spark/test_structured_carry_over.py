"""A task's judgement of its rows, without Spark."""

from __future__ import annotations

import tempfile
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from keylane.errors import Fatal, HandlerError, InternalError, UsageError
from keylane.options import DeadLetter, Retries
from keylane.spark.structured import carry_over
from keylane.spark.structured.carry_lists import CarryList
from keylane.spark.structured.carry_over import CarryOver, TaskCarry, TaskReport
from keylane.spark.structured.rows import TaskRow

FAR_MS = int((time.time() + 3600) * 1000)


class Reports:
    """The driver's accumulator."""

    def __init__(self, *_: object) -> None:
        self.value: list[TaskReport] = []

    def add(self, reports: list[TaskReport]) -> None:
        self.value += reports


def made(**options: Any) -> CarryOver:
    one = CarryOver(tempfile.gettempdir(), kafka={"bootstrap.servers": "h:1"}, **options)
    streams = SimpleNamespace(addListener=lambda _: None)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(accumulator=Reports), streams=streams)
    one.begin(spark)
    return one


def carry(last: CarryList | None = None, frozen: CarryList | None = None, **options: Any) -> TaskCarry:
    return TaskCarry(made(**options), Retries(max_attempts=3, delay_ms=1_000, jitter=0), 7, 2, frozen, last)


def row(offset: int) -> Any:
    return Row(topic="t", partition=0, offset=offset, key=b"k", value=b"v")


def record(offset: int, key: bytes | None = b"k") -> TaskRow:
    return TaskRow(row(offset), key, offset)


def tried(one: TaskCarry, offset: int, error: Exception | None, key: bytes | None = b"k") -> bool:
    """Whether the row left the batch, when its function ended like this (if it ran at all)."""
    fed = record(offset, key)
    if one.held(fed) is None:
        fed.values, fed.error, fed.attempts = [] if error is None else None, error, 1
        one.judge(fed)
    return one.takes(fed)


def interrupted(offset: int) -> TaskRow:
    """At the deadline."""
    fed = record(offset)
    fed.carried = True
    return fed


def carried(one: TaskCarry) -> dict[int, tuple[int, int]]:
    """Attempts and due time by offset, as the driver is told at the end of the task."""
    one.report()
    (report,) = one.carry_over.collected(7, went_by=None if one.last is None else one.last.batch)
    return {offset: what for (_, _, offset), what in report.carried.items()}


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> list[TaskRow]:
    """Dead letters of tasks that are reported; they have no Kafka."""
    buried: list[TaskRow] = []
    opened = nullcontext(SimpleNamespace(bury=buried.append))
    monkeypatch.setattr(carry_over, "DeadLetters", lambda *_: opened)
    return buried


def test_a_failure_is_carried_with_the_later_records_of_its_key() -> None:
    one = carry()
    assert tried(one, 1, None) is False
    assert tried(one, 2, ValueError("busy")) is True
    assert tried(one, 3, None) is True
    assert tried(one, 4, None, b"other") is False
    assert tried(one, 5, ValueError("busy"), None) is True
    assert tried(one, 6, None, None) is False
    assert {offset: attempts for offset, (attempts, _) in carried(one).items()} == {2: 1, 3: 0, 5: 1}


def test_attempts_of_earlier_batches_count() -> None:
    last = CarryList(6, "q", 5, {("t", 0): {1: (1, 0), 2: (2, 0)}})
    one = carry(last)
    assert tried(one, 1, ValueError("busy"), b"a") is True
    assert tried(one, 2, ValueError("busy"), b"b") is False  # the third attempt: it fails the batch
    attempts, due_ms = carried(one)[1]
    assert attempts == 2
    assert due_ms > time.time() * 1000


def test_a_record_that_is_not_due_is_carried_unchanged_and_so_is_what_follows() -> None:
    one = carry(CarryList(6, "q", 5, {("t", 0): {1: (1, FAR_MS)}}))
    assert tried(one, 1, None) is True
    assert tried(one, 2, None) is True
    assert carried(one) == {1: (1, FAR_MS), 2: (0, FAR_MS)}  # nothing is due before the first


@pytest.mark.parametrize("error", [ValueError("busy"), Fatal("no")])
def test_after_the_last_attempt_a_record_is_dead(letters: list[TaskRow], error: Exception) -> None:
    last = CarryList(6, "q", 5, {("t", 0): {1: (2, 0)}})
    one = carry(last, dead_letter=DeadLetter("dlq"))
    assert tried(one, 1, error) is True
    assert tried(one, 2, None) is False  # the key goes on
    assert carried(one) == {}
    assert [dead.attempts for dead in letters] == [3]


def test_what_was_interrupted_counts_as_an_attempt_and_what_had_not_begun_does_not() -> None:
    one = carry()
    assert one.held(record(1)) is None
    for offset in (1, 2):
        assert one.takes(interrupted(offset)) is True
    found = carried(one)
    assert {offset: attempts for offset, (attempts, _) in found.items()} == {1: 1, 2: 0}
    assert len({due for _, due in found.values()}) == 1


def test_what_is_throttled_at_the_deadline_has_used_up_no_attempt_and_waits_on() -> None:
    now_ms = int(time.time() * 1000)
    one = carry()
    assert one.held(record(0)) is None
    one.throttled(row(0), 60_000)
    assert one.takes(interrupted(0)) is True
    ((attempts, due_ms),) = carried(one).values()
    assert attempts == 0
    assert now_ms + 60_000 <= due_ms <= int(time.time() * 1000) + 60_000


def test_a_record_that_never_ends_in_time_has_a_last_attempt_too(letters: list[TaskRow]) -> None:
    one = carry(CarryList(6, "q", 5, {("t", 0): {1: (2, 0)}}), dead_letter=DeadLetter("dlq"))
    assert one.held(record(1)) is None
    assert one.takes(interrupted(1)) is True
    assert carried(one) == {}
    assert [(dead.attempts, str(dead.error)) for dead in letters] == [(3, "not ended within deadline_ms=60000")]


def test_a_batch_with_a_list_leaves_out_exactly_that_and_carries_nothing_else() -> None:
    frozen = CarryList(7, "q", 6, {("t", 0): {1: (1, FAR_MS)}}, frozenset({("t", 0, 3)}))
    one = carry(CarryList(6, "q", 5, {("t", 0): {2: (2, FAR_MS)}}), frozen)
    assert [pair[0].offset for pair in one.wanted([(row(offset), b"k") for offset in range(5)])] == [0, 2, 4]
    assert one.deadline_s is None
    assert tried(one, 2, None) is False
    with pytest.raises(HandlerError, match="t-0@4 failed in a replay of batch 7"):
        tried(one, 4, ValueError("busy"))


def test_the_driver_is_told_once_and_by_the_last_run_of_a_task() -> None:
    driver = made()
    first = TaskReport(7, 0, {("t", 0, 1): (1, 0)}, frozenset(), went_by=6)
    again = TaskReport(7, 0, {("t", 0, 2): (1, 0)}, frozenset(), went_by=6)
    for report in (first, TaskReport(6, 1, {}, frozenset()), again):
        driver.report(report)
    assert driver.collected(7, went_by=6) == [again]
    assert driver.collected(7) == []
    driver.report(again)
    with pytest.raises(InternalError, match="tasks went by the list of batch 6, and not of 5"):
        driver.collected(7, went_by=5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"folder": ""}, "give a folder"),
        ({"folder": "/f", "deadline_ms": 0}, "deadline_ms=0"),
        ({"folder": "/f", "dead_letter": DeadLetter("d")}, "dead_letter needs kafka"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CarryOver(**options)


def test_the_frame_must_name_its_records() -> None:
    with pytest.raises(UsageError, match="no column partition, offset"):
        CarryOver("/f").check({"topic": "string", "key": "binary"})


def test_a_dead_letter_needs_the_record_as_it_was() -> None:
    one = CarryOver("/f", dead_letter=DeadLetter("d"), kafka={"bootstrap.servers": "h:1"})
    names = dict.fromkeys(("topic", "partition", "offset"), "any") | {"key": "binary", "value": "binary"}
    kinds = {"headers": "array<struct<key:string,value:binary>>", "timestamp": "timestamp"}
    one.check(names | kinds)
    CarryOver("/f").check(names)
    with pytest.raises(UsageError, match=r"no column headers \(array.*includeHeaders"):
        one.check(names | {"timestamp": "timestamp"})
    with pytest.raises(UsageError, match=r"no column timestamp \(timestamp\)"):
        one.check(names | kinds | {"timestamp": "string"})
