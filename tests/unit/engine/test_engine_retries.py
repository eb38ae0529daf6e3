"""Backoff, and the schedule of what waits."""

from __future__ import annotations

from typing import Any, cast

import pytest

from keylane.flow.items import Item
from keylane.flow.retries import Schedule, backoff_s, delay_s
from keylane.foreign_errors import MAX_WAIT_MS
from keylane.options import Retries
from keylane.records import PlainMessage


class Source:
    wanted = True


def item(number: int, source: Source | None = None) -> Item:
    return Item(cast("Any", source or Source()), number, PlainMessage("t", 0, number))


@pytest.mark.parametrize(
    ("attempt", "random", "seconds"), [(1, 0.0, 0.1), (2, 0.0, 0.2), (3, 0.0, 0.4), (3, 1.0, 0.2), (5, 0.0, 1.0)]
)
def test_the_delay_doubles_up_to_a_limit_and_jitter_takes_a_share_off(
    attempt: int, random: float, seconds: float
) -> None:
    retries = Retries(delay_ms=100, max_delay_ms=1_000, multiplier=2.0, jitter=0.5)
    assert backoff_s(retries, attempt, lambda: random) == pytest.approx(seconds)


def test_a_very_late_attempt_waits_the_longest_delay() -> None:
    assert backoff_s(Retries(max_attempts=5_000, jitter=0), 4_000, lambda: 0.5) == 60.0


@pytest.mark.parametrize("wait_ms", [1e300, 10**400])
def test_a_delay_beyond_ten_years_is_taken_for_that(wait_ms: float) -> None:
    retries = Retries(delay_ms=lambda *_: wait_ms)
    assert delay_s(retries, 1, ValueError(), None, lambda: 0.5) == MAX_WAIT_MS / 1000


def test_the_schedule_gives_the_earliest_first_and_only_what_is_due() -> None:
    schedule = Schedule()
    late, early, same = item(1), item(2), item(3)
    schedule.add(late, 9.0)
    schedule.add(early, 5.0)
    schedule.add(same, 5.0)
    assert schedule.next_due == 5.0
    assert schedule.pop_due(4.9) == []
    assert schedule.pop_due(5.0) == [early, same]
    assert schedule.next_due == 9.0
    assert len(schedule) == 1


def test_work_of_a_closed_assignment_is_dropped() -> None:
    schedule = Schedule()
    gone, kept = Source(), Source()
    schedule.add(item(1, gone), 1.0)
    schedule.add(item(2, gone), 9.0)
    schedule.add(item(3, kept), 9.0)
    gone.wanted = False
    assert schedule.pop_due(2.0) == []
    schedule.forget_closed()
    assert len(schedule) == 1
    assert schedule.pop_due(9.0)[0].number == 3
