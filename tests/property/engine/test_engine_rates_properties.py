"""Token buckets on any schedule: never more than the rate and the burst allow, and never less than the rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.engine.rates import Bucket

PER_S = st.floats(0.5, 5_000)
BURST_MS = st.integers(0, 2_000)
WAITS = st.lists(st.floats(0, 0.5), min_size=1, max_size=80)


@given(per_s=PER_S, burst_ms=BURST_MS, waits=WAITS)
def test_no_interval_has_more_than_the_rate_and_the_burst(per_s: float, burst_ms: int, waits: list[float]) -> None:
    bucket, now = Bucket(per_s, burst_ms), 1_000.0
    starts: list[tuple[float, int]] = []
    for wait in waits:
        now += wait
        if room := bucket.room(now):
            bucket.take(room, now)
            starts.append((now, room))
    most = max(1.0, per_s * burst_ms / 1000)
    for index, (begin, _) in enumerate(starts):
        taken = 0
        for at, count in starts[index:]:
            taken += count
            assert taken <= most + per_s * (at - begin) + 1e-3


@given(per_s=PER_S, burst_ms=BURST_MS, count=st.integers(1, 200))
def test_who_always_comes_when_it_is_due_gets_the_whole_rate(per_s: float, burst_ms: int, count: int) -> None:
    bucket, begin = Bucket(per_s, burst_ms), 1_000.0
    now = begin
    for _ in range(count):
        now = max(now, bucket.due())
        assert bucket.room(now) >= 1
        bucket.take(1, now)
    assert now - begin <= (count - 1) / per_s + 1e-6
