"""Rates on any schedule: never more starts than the rate and the burst allow, and never fewer than the rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.offsets import OffsetMap
from keylane.options import Rates
from kit.driven import Driven

if TYPE_CHECKING:
    from random import Random

PER_S = st.floats(0.5, 5_000)
BURST_MS = st.integers(0, 2_000)
WAITS = st.lists(st.floats(0, 0.5), min_size=1, max_size=40)
T0 = ("t", 0)
LOADED = 3_000
LIMITS = ("records_per_s", "per_partition", "per_key")


def limited(limit: str, per_s: float, burst_ms: int, random: Random, records: int) -> Driven:
    """Records that are all under one limit, and end at once."""
    rates = Rates(**{limit: per_s, "burst_ms": burst_ms})  # type: ignore[arg-type]
    one = Driven(
        {T0: OffsetMap(0)}, LOADED, random.random, ordering="key", rates=rates, max_buffered_records=10 * LOADED
    )
    one.now = 1_000.0
    one.load(T0, [b"k" if limit == "per_key" else b"%d" % number for number in range(records)])
    return one


def start_all(one: Driven) -> int:
    """Start and end what may start now."""
    count = 0
    while new := one.turn():
        count += len(new)
        for item in new:
            one.end(item)
    return count


@pytest.mark.parametrize("limit", LIMITS)
@settings(max_examples=25, deadline=None)
@given(per_s=PER_S, burst_ms=BURST_MS, waits=WAITS, random=st.randoms())
def test_no_interval_has_more_than_the_rate_and_the_burst(
    limit: str, per_s: float, burst_ms: int, waits: list[float], random: Random
) -> None:
    one = limited(limit, per_s, burst_ms, random, LOADED // 10)
    starts: list[tuple[float, int]] = []
    for wait in waits:
        one.now += wait
        if count := start_all(one):
            starts.append((one.now, count))
    most = max(1.0, per_s * burst_ms / 1000)
    for index, (begin, _) in enumerate(starts):
        taken = 0
        for at, count in starts[index:]:
            taken += count
            assert taken <= most + per_s * (at - begin) + 1e-3


@pytest.mark.parametrize("limit", LIMITS)
@settings(max_examples=25, deadline=None)
@given(per_s=PER_S, burst_ms=BURST_MS, count=st.integers(1, 60), random=st.randoms())
def test_who_always_comes_when_it_is_due_gets_the_whole_rate(
    limit: str, per_s: float, burst_ms: int, count: int, random: Random
) -> None:
    one = limited(limit, per_s, burst_ms, random, count)
    begin, started = one.now, start_all(one)
    while started < count:
        due = one.engine.next_check(one.now)
        assert due is not None, "records wait, and nothing is due"
        one.now = max(one.now, due)
        started += start_all(one)
    assert one.now - begin <= (count - 1) / per_s + 1e-6
