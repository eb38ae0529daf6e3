"""Ordering and the dispatch bound, on any keys and any order of completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.engine.assignment import Assignment, Start
from keylane.offsets import DispatchBound, OffsetMap, encode
from keylane.records import PlainMessage

if TYPE_CHECKING:
    from random import Random

KEYS = st.lists(st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"d"])), min_size=1, max_size=60)


def assignment(ordering: Any, cap: int = 4_096, offsets: OffsetMap | None = None) -> Assignment:
    return Assignment(Start("t", 0, 1, offsets or OffsetMap(0), 0, 10_000), ordering, DispatchBound.for_cap(cap))


def complete(one: Assignment, work: Any) -> None:
    """What the core does with a completed record."""
    del one.in_flight[work.offset]
    one.ready.extend(one.shards.release([work.offset], [work.message]))
    one.tracker.complete([work.offset])


@settings(deadline=None)
@given(keys=KEYS, ordering=st.sampled_from(["key", "partition", "unordered"]), random=st.randoms())
def test_records_of_a_shard_never_overlap_and_run_in_order_and_all_run(
    keys: list[bytes | None], ordering: str, random: Random
) -> None:
    one = assignment(ordering)
    records = [PlainMessage("t", 0, offset, key) for offset, key in enumerate(keys)]
    running: dict[int, Any] = {}
    ran: list[int] = []

    def shard(offset: int) -> Any:
        if ordering == "unordered" or (ordering == "key" and keys[offset] is None):
            return ("alone", offset)
        return keys[offset] if ordering == "key" else 0

    while len(ran) < len(keys):
        if records and random.random() < 0.5:
            count = random.randint(1, len(records))
            one.observe(records[:count])
            records = records[count:]
        for work in one.take(random.randint(1, 8), 0.0):
            assert shard(work.offset) not in {shard(other) for other in running}, "two of a shard at once"
            assert all(shard(o) != shard(work.offset) or o in ran for o in range(work.offset)), "out of order"
            running[work.offset] = work
        if running:
            offset = random.choice(sorted(running))
            complete(one, running.pop(offset))
            ran.append(offset)
    assert sorted(ran) == list(range(len(keys)))
    assert one.tracker.base == len(keys)
    assert one.shards.count == 0


@settings(max_examples=60, deadline=None)  # a busy machine is no failure
@given(cap=st.integers(0, 120), stuck=st.sets(st.integers(0, 900), max_size=40), random=st.randoms())
def test_whatever_is_dispatched_every_map_fits_the_cap_and_nothing_waits_for_ever(
    cap: int, stuck: set[int], random: Random
) -> None:
    one = assignment("unordered", cap)
    one.observe([PlainMessage("t", 0, offset) for offset in range(900)])
    running: dict[int, Any] = {}
    fixed = False
    while one.tracker.base < 900:
        running |= {work.offset: work for work in one.take(random.randint(1, 400), 0.0)}
        free = [offset for offset in running if fixed or offset not in stuck]
        if not free:
            assert set(running) <= stuck, "what may run is held back by stuck records alone"
            assert running
            fixed = True
            continue
        count = random.randint(1, len(free))
        for offset in free[:count]:
            complete(one, running.pop(offset))
        offsets = one.tracker.snapshot()
        assert not offsets.span or len(encode(offsets)) <= cap


@settings(deadline=None)
@given(
    incomplete=st.sets(st.integers(10, 40), max_size=15),
    gaps=st.sets(st.integers(10, 60), max_size=15),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=20),
)
def test_after_a_restart_exactly_the_incomplete_records_run(
    incomplete: set[int], gaps: set[int], sizes: list[int]
) -> None:
    offsets = OffsetMap(10, sorted(incomplete), 40)
    one = assignment("unordered", offsets=offsets)
    log = [PlainMessage("t", 0, offset) for offset in range(10, 61) if offset not in gaps]
    done = 0
    while log:
        size = sizes[done % len(sizes)]
        done += 1
        one.observe(log[:size])
        log = log[size:]
    due = [offset for offset in range(10, 61) if offset not in gaps and not offsets.is_complete(offset)]
    assert [work.offset for work in one.take(1_000, 0.0)] == due
