"""How much is polled and handed over."""

from __future__ import annotations

from typing import Any, cast

import pytest

from keylane.consumer.partitions import ALL_STILL_S, OWN_SHARE, SLOW_S, STILL_S, PollBound
from keylane.flow.admission import (
    AHEAD_S,
    BELIEVED,
    ENOUGH,
    LEAST_WANTED,
    MAX_AHEAD,
    MOST_WANTED,
    OBSERVED_S,
    WANTED_S,
    HandOver,
)


class Tracker:
    pending = 0


class Part:
    """What the bound looks at of a partition."""

    def __init__(self) -> None:
        self.tracker = Tracker()
        self.buffered_bytes = 0
        self.is_poll_paused = False
        self.reached_end = False

    def pause_poll(self, *, is_paused: bool) -> None:
        self.is_poll_paused = is_paused


class Parts:
    """Some partitions under one bound."""

    def __init__(self, limit: int, count: int) -> None:
        self.bound = PollBound(limit)
        self.bound.share_among(count)
        self.parts = [Part() for _ in range(count)]

    @property
    def buffered(self) -> int:
        return sum(part.tracker.pending for part in self.parts)

    def poll(self, index: int, records: int) -> None:
        self.parts[index].tracker.pending += records
        self.bound.polled(cast("Any", self.parts[index]))

    def plan(self, now: float) -> tuple[int, list[int], list[int]]:
        plan = self.bound.plan(self.buffered, now)
        pause, resume = ([self.parts.index(cast("Any", one)) for one in some] for some in (plan.pause, plan.resume))
        return plan.credit, sorted(pause), sorted(resume)


def test_the_credit_is_a_share_of_what_is_free() -> None:
    parts = Parts(100, 2)
    assert parts.plan(0.0) == (12, [], [])
    parts.poll(0, 25)
    assert parts.plan(0.0) == (9, [], [])


def test_where_little_is_free_a_poll_brings_no_more_than_two_equal_parts() -> None:
    parts = Parts(1_000, 100)
    assert parts.plan(0.0)[0] == 125
    for index in range(60):
        parts.poll(index, 10)
    assert parts.plan(0.0)[0] == 20


def test_a_partition_over_its_threshold_stops_the_poll_and_is_paused_only_if_it_stays_over() -> None:
    parts = Parts(100, 2)
    parts.poll(0, 45)  # its own part of 25, and half of the common 40
    assert parts.plan(1.0) == (0, [], [])
    assert parts.bound.next_check() == 1.0 + STILL_S
    assert parts.plan(1.0 + STILL_S) == (6, [0], [])
    assert parts.bound.next_check() is None


def test_a_partition_that_flows_is_not_paused() -> None:
    parts = Parts(100, 2)
    parts.poll(0, 45)
    assert parts.plan(1.0)[0] == 0
    parts.parts[0].tracker.pending = 15
    assert parts.plan(1.05) == (10, [], [])
    assert parts.bound.next_check() is None


def test_where_standing_still_did_not_help_the_next_ones_are_paused_at_once() -> None:
    parts = Parts(100, 4)
    parts.poll(0, 40)
    parts.plan(1.0)
    slow = 1.0 + STILL_S
    assert parts.plan(slow)[1] == [0]
    parts.poll(1, 30)
    assert parts.plan(slow)[1] == [1], "nobody waits for it"
    parts.poll(2, 20)
    assert parts.plan(slow + SLOW_S)[:2] == (0, []), "handlers may be quick by now"


def test_nobody_is_paused_while_every_partition_has_enough() -> None:
    parts = Parts(100, 2)
    parts.poll(0, 45)
    parts.poll(1, 40)
    assert parts.plan(1.0) == (0, [], [])
    assert parts.plan(1.0 + 2 * STILL_S) == (0, [], [])
    assert parts.bound.next_check() == 1.0 + ALL_STILL_S
    assert parts.plan(1.0 + ALL_STILL_S)[:2] == (1, [0, 1]), "the client's callbacks are to be served"


def test_one_that_runs_short_has_the_others_paused() -> None:
    parts = Parts(100, 2)
    parts.poll(0, 45)
    parts.poll(1, 40)
    parts.plan(1.0)
    parts.parts[1].tracker.pending = 10
    credit, pause, _ = parts.plan(1.5)
    assert (credit > 0, pause) == (True, [0])


def test_a_paused_partition_is_resumed_well_below_its_threshold() -> None:
    parts = Parts(100, 2)
    parts.poll(0, 45)
    parts.plan(1.0)
    parts.plan(2.0)
    parts.parts[0].tracker.pending = 30
    assert parts.plan(3.0)[2] == []
    parts.parts[0].tracker.pending = 20
    assert parts.plan(3.0)[2] == [0]


def test_the_only_partition_may_hold_the_whole_bound() -> None:
    parts = Parts(100, 1)
    parts.poll(0, 99)
    assert parts.plan(1.0) == (1, [], [])
    parts.poll(0, 1)
    assert parts.plan(1.0) == (0, [], [])
    parts.parts[0].tracker.pending = 50
    assert parts.plan(1.1) == (6, [], [])


@pytest.mark.parametrize("hogs", [1, 2, 5, 10])
def test_stuck_partitions_leave_the_others_their_own_part(hogs: int) -> None:
    parts = Parts(1_000, hogs + 1)
    now = 0.0
    for index in range(hogs):  # the worst case: one after the other
        for _ in range(50):
            credit, _, _ = parts.plan(now)
            if credit and not parts.parts[index].is_poll_paused:
                parts.poll(index, credit)
            now += STILL_S
    assert all(part.is_poll_paused for part in parts.parts[:hogs])
    assert 1_000 - parts.buffered >= 1_000 * OWN_SHARE / (hogs + 1)
    assert parts.parts[hogs - 1].tracker.pending >= 1_000 * OWN_SHARE / (hogs + 1)
    assert parts.plan(now)[0] > 0


def test_the_smallest_bound_still_lets_every_partition_have_a_record() -> None:
    parts = Parts(1, 3)
    for index in range(3):
        assert parts.plan(10.0 * index)[0] == 1
        parts.poll(index, 1)
        assert parts.plan(10.0 * index)[0] == 0
        assert parts.plan(10.0 * index + 1)[1] == [index]


def test_a_partition_at_its_ending_offset_is_paused_at_once_and_stays_so() -> None:
    parts = Parts(100, 2)
    parts.parts[1].reached_end = True
    parts.bound.polled(cast("Any", parts.parts[1]))
    assert parts.plan(0.0) == (12, [1], [])
    assert parts.plan(9.0) == (12, [], [])


def test_partitions_at_their_ends_are_not_looked_at_in_each_turn() -> None:
    parts = Parts(100, 1_000)
    for part in parts.parts[1:]:
        part.reached_end = True
        parts.bound.polled(cast("Any", part))
    assert len(parts.plan(0.0)[1]) == 999
    for part in parts.parts[1:]:
        del part.reached_end  # whoever asks now fails
    assert parts.plan(1.0) == (12, [], [])


def test_a_forgotten_partition_stops_nothing() -> None:
    parts = Parts(100, 2)
    parts.poll(0, 60)
    assert parts.plan(0.0)[0] == 0
    parts.bound.forget(cast("Any", parts.parts[0]))
    parts.parts[0].tracker.pending = 0
    assert parts.plan(0.0) == (12, [], [])


def observe(window: HandOver, records: int, calls: int, now: float, took_s: float = 1.0) -> None:
    """A turn with so many completions, after which calls are still out."""
    window.ended(records, calls, took_s)
    window.observe(now, 1)


def test_slow_workers_get_nothing_ahead_and_fast_ones_milliseconds_of_work() -> None:
    window = HandOver(16, may_queue=True)
    assert window.size == 16
    observe(window, 3, 3, OBSERVED_S)
    assert window.size == 16 + int(3 / OBSERVED_S * AHEAD_S)
    observe(window, 10_000_000, 10_000_000, 2.0)
    assert window.size == 16 + MAX_AHEAD
    observe(window, 1, 1, 12.0)
    assert window.size == 16


def test_all_completions_of_a_turn_are_in_one_count() -> None:
    window = HandOver(16, may_queue=True)
    for _ in range(10):
        observe(window, 0, 0, 1.0)
    window.ended(1, 1, 0.1)
    window.ended(99, 99, 0.9)
    window.observe(1.1, 1)
    assert window.size == 16 + int(100 / 1.1 * AHEAD_S)


def test_the_first_counts_are_soon_believed_and_not_for_long() -> None:
    window = HandOver(16, may_queue=True)
    window.observe(100.0, 0)
    now, believed = 100.0, 0.0
    for observed in (0.001, 0.002, 0.004, 0.008, OBSERVED_S, OBSERVED_S):
        observe(window, 1_000, 1_000, now + observed * 0.9)
        assert window.stocked_s(10**9) == pytest.approx(believed), "not seen for long enough"
        now += observed * 1.01
        observe(window, 0, 0, now)
        believed = BELIEVED * observed * 1.01
        assert window.stocked_s(10**9) == pytest.approx(believed)


def test_time_in_which_nothing_is_out_does_not_count() -> None:
    window = HandOver(16, may_queue=True)
    window.observe(100.0, 0)
    window.observe(200.0, 0)
    observe(window, 10, 10, 200.0 + OBSERVED_S)
    assert window.size == 16 + int(10 / OBSERVED_S * AHEAD_S)
    window.observe(300.0, 1)
    assert window.size == 16 + int(10 / OBSERVED_S * AHEAD_S), "they work at it; nothing new is known"


def test_workers_are_stocked_for_as_long_as_what_waits_takes_them() -> None:
    window = HandOver(16, may_queue=True)
    assert window.stocked_s(1_000) == 0, "nothing is known yet"
    window.observe(1.0, 0)
    observe(window, 400, 40, 1.0 + OBSERVED_S)
    assert window.stocked_s(16) == 0, "nothing waits"
    assert window.stocked_s(3) == 0
    assert window.stocked_s(16 + 8) == pytest.approx(OBSERVED_S / 5), "in calls, not in records"


def test_a_poll_brings_what_the_workers_get_through_soon_within_limits() -> None:
    window = HandOver(16, may_queue=True)
    assert window.wanted == LEAST_WANTED
    window.observe(1.0, 0)
    observe(window, 100_000, 10, 2.0)
    assert window.wanted == 100_000 * WANTED_S
    observe(window, 1_000_000, 10, 2.5)
    assert window.wanted == MOST_WANTED
    observe(window, 10, 10, 3.0)
    assert window.wanted == LEAST_WANTED


def test_a_call_holds_as_many_of_a_shard_as_it_gets_through_in_its_time() -> None:
    window = HandOver(16, may_queue=True, call_s=0.01)

    def of_a_shard(calls: int, waiting: int = 50) -> int:
        several, in_a_row = window.sizes(calls, [waiting], may_follow=True)
        assert in_a_row == (several > 1)
        return several

    assert of_a_shard(1) == 1, "nothing is known yet"
    window.observe(1.0, 0)
    observe(window, 50_000, 50, 1.125, took_s=0.5)
    assert of_a_shard(1) == 1_000
    assert of_a_shard(1_000) == 1_000, "what waits for a worker keeps none"
    observe(window, 10, 10, 2.0)
    assert of_a_shard(1) == 1, "slow handlers get one record at a time"
    observe(window, 1_000, 1_000, 3.0, took_s=5.0)
    assert of_a_shard(5) == 2
    assert of_a_shard(5, 11) == 50, "with workers to spare they may be slower"


def test_where_many_shards_wait_a_call_holds_a_worker_s_share_of_them() -> None:
    window = HandOver(16, may_queue=True, call_s=0.01)
    window.observe(1.0, 0)
    observe(window, 50_000, 50, 1.125, took_s=0.625)
    assert window.sizes(5, [ENOUGH], may_follow=True) == (ENOUGH // 16, False)
    assert window.sizes(5, [ENOUGH - 20, 20], may_follow=True) == (ENOUGH // 16, False), "of all sources together"
    assert window.sizes(5, [50], may_follow=False) == (50 // 16, False), "one behind another may not go with it"
    assert window.sizes(5, [1_000_000], may_follow=True) == (800, False), "no more than it gets through in its time"


def test_workers_that_cannot_queue_get_no_more_than_run() -> None:
    window = HandOver(16, may_queue=False)
    observe(window, 1_000_000, 1_000_000, 1.0)
    assert window.size == 16
