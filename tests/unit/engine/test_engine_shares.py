"""Partitions with a backlog each get on as fast as their handlers allow, whatever the others have."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.consumer.partitions import STILL_S, Partitions, PollBound, default_bound
from keylane.consumer.start import Start
from keylane.kafka.settings import CONSUMER_DEFAULTS, FETCH_BYTES, fetch_bytes
from keylane.offsets import DispatchBound, OffsetMap
from keylane.pipeline import Pipeline
from keylane.records import PlainMessage
from keylane.telling import logger_of
from kit.simulated_fetches import Part, run


@pytest.mark.parametrize(
    ("partitions", "record_bytes", "least"),
    [
        (10, 80, 0.99),
        # The first seconds are counted, in which each partition has its first turn.
        (100, 400, 0.96),
        (100, 80, 0.96),
        (1_000, 80, 0.93),
        (1_000, 400, 0.93),
        (1_000, 4_000, 0.84),
    ],
)
@pytest.mark.parametrize("is_even", [True, False])
def test_full_partitions_of_few_keys_run_side_by_side(
    partitions: int, record_bytes: int, least: float, is_even: bool
) -> None:
    log_ends = [400_000 // (1 if is_even else rank) for rank in range(1, partitions + 1)]
    seen = run(log_ends, each=answer_bytes(partitions) // record_bytes, most=4_000_000 // record_bytes)
    assert seen.filled >= least, seen
    assert seen.most_buffered <= default_bound(partitions) + partitions, seen


def test_the_default_bound_follows_the_partitions() -> None:
    """An equal part of it is at least 200 records, up to a thousand partitions."""
    assert [default_bound(count) for count in (0, 1, 50, 51, 1_000, 9_000)] == [
        20_000,
        20_000,
        20_000,
        20_400,
        400_000,
        400_000,
    ]


def test_what_an_answer_brings_of_each_partition_follows_their_number() -> None:
    assert [answer_bytes(count) for count in (0, 1, 20, 100, 1_000)] == [100_000, 100_000, 100_000, 50_000, 20_000]
    assert fetch_bytes(1_000, {FETCH_BYTES: 5}) == fetch_bytes(1_000, {"fetch.message.max.bytes": 5}) == {}


def answer_bytes(partitions: int) -> int:
    """What an answer brings of each, by default."""
    return int((CONSUMER_DEFAULTS | fetch_bytes(partitions, {}))[FETCH_BYTES])


@pytest.mark.parametrize("partitions", [10, 100])
def test_a_newcomer_waits_for_nobody_s_backlog(partitions: int) -> None:
    log_ends = [400_000 // rank for rank in range(1, partitions)]
    seen = run([*log_ends, 0], each=250, most=10_000, newcomer_at=3.0)
    assert seen.waited_s is not None
    assert seen.waited_s <= 0.5, seen


@settings(max_examples=100)
@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=60), st.integers(10, 1_300))
def test_no_partition_with_records_starves(log_ends: list[int], each: int) -> None:
    seen = run(log_ends, each=each, seconds=1.5)
    assert seen.starved == 0, seen
    assert seen.most_buffered <= default_bound(len(log_ends)) + len(log_ends), seen


@given(
    st.integers(1, 2_000),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 11), st.floats(0, 1), st.floats(0, 0.2)), max_size=200),
)
def test_whatever_is_polled_the_buffer_keeps_its_bound(
    limit: int, count: int, polls: list[tuple[int, float, float]]
) -> None:
    """Each poll brings all that it may, of one partition; then a share of that partition's records is through."""
    bound = PollBound(limit)
    bound.share_among(count)
    parts = [Part(number, 0) for number in range(count)]
    now = 0.0
    for number, share, passes_s in polls:
        now += passes_s
        part = parts[number % count]
        credit = bound.plan(sum(one.tracker.pending for one in parts), now).credit
        if credit and not part.is_poll_paused:
            part.tracker.pending += credit
            bound.polled(cast("Any", part))
        assert sum(one.tracker.pending for one in parts) <= limit + count
        part.tracker.pending -= int(part.tracker.pending * share)
    for part in parts:
        part.tracker.pending = 0
    bound.plan(0, now + STILL_S)
    assert not any(part.is_poll_paused for part in parts), "those that have nothing left are read on"


def test_a_partition_of_large_records_is_held_to_its_share_of_the_bytes() -> None:
    """Its four records are nothing of 20,000, and 40 of 64 MB; others would have to wait until they are through."""
    bound = PollBound(20_000, 64e6)
    bound.share_among(10)
    large: Any = Part(0, 4)
    large.tracker.pending, large.buffered_bytes = 4, 40_000_000
    bound.polled(large)
    assert bound.plan(4, 0.0).credit == 0, "the poll stands still first"
    assert bound.plan(4, STILL_S).pause == (large,)
    large.tracker.pending, large.buffered_bytes = 1, 5_000_000
    assert bound.plan(1, 2.0).resume == (large,)


def test_records_of_a_paused_partition_do_not_say_how_large_the_next_ones_are() -> None:
    """Five records of 5 MB wait in a paused partition: there is room for thousands of small ones of others, not for one
    at a time."""
    partitions = of_ten({0: [bytes(5_000_000)] * 5, 1: [b"small"] * 20})
    partitions.poll_plan(0.0)
    assert [one.name for one in partitions.poll_plan(STILL_S).pause] == [("t", 0)]
    partitions.observe(partitions.open["t", 1], messages(1, [b"small"] * 2, 20))
    assert partitions.poll_plan(2 * STILL_S).credit >= 1_000


def of_ten(values: dict[int, list[bytes]]) -> Partitions:
    """Ten partitions, some of which have these records buffered."""
    pipeline = Pipeline(kafka={"bootstrap.servers": "nowhere:1", "group.id": "g"}, topics=["t"], handler=print)
    partitions = Partitions(pipeline, cast("Any", None), Counter(), None, logger_of("test"))
    for number in range(10):
        start = Start("t", number, 1, OffsetMap(0), 0, 100)
        partitions.add(start, DispatchBound.for_cap(4_096), may_take=True, may_begin=True)
    for number, some in values.items():
        partitions.observe(partitions.open["t", number], messages(number, some, 0))
    return partitions


def messages(partition: int, values: list[bytes], first: int) -> list[PlainMessage]:
    return [PlainMessage("t", partition, first + place, b"", value, (), (1, 0)) for place, value in enumerate(values)]
