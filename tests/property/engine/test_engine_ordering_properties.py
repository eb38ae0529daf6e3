"""Ordering and the dispatch bound, on any keys and any order of completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.offsets import OffsetMap
from keylane.pipeline import Commit
from keylane.records import PlainMessage
from kit.driven import Driven
from kit.examples import examples

if TYPE_CHECKING:
    from random import Random

KEYS = st.lists(st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"d"])), min_size=1, max_size=60)
T0 = ("t", 0)
RECORDS = 300


@settings(deadline=None)
@given(
    keys=KEYS,
    ordering=st.sampled_from(["key", "partition", "unordered"]),
    concurrency=st.integers(1, 8),
    random=st.randoms(),
)
def test_records_of_a_shard_never_overlap_and_run_in_order_and_all_run(
    keys: list[bytes | None], ordering: Any, concurrency: int, random: Random
) -> None:
    one = Driven({T0: OffsetMap(0)}, concurrency, random.random, ordering=ordering)
    polled = 0
    ran: list[int] = []

    def shard(offset: int) -> Any:
        if ordering == "unordered" or (ordering == "key" and keys[offset] is None):
            return ("alone", offset)
        return keys[offset] if ordering == "key" else 0

    while len(ran) < len(keys):
        if polled < len(keys) and (random.random() < 0.5 or not one.running):
            count = random.randint(1, len(keys) - polled)
            one.load(T0, keys[polled : polled + count], first=polled)
            polled += count
        out = {item.offset for item in one.running}
        for item in one.turn():
            assert shard(item.offset) not in {shard(other) for other in out}, "two of a shard at once"
            assert all(shard(o) != shard(item.offset) or o in ran for o in range(item.offset)), "out of order"
            out.add(item.offset)
        assert len(out) <= concurrency
        if one.running:
            item = random.choice(one.running)
            one.end(item)
            ran.append(item.offset)
    one.turn()
    assert sorted(ran) == list(range(len(keys)))
    assert one.committed(T0) == OffsetMap(len(keys))


@settings(max_examples=examples(60), deadline=None)  # a busy machine is no failure
@given(cap=st.integers(1, 120), stuck=st.sets(st.integers(0, RECORDS - 1), max_size=40), random=st.randoms())
def test_whatever_is_dispatched_every_map_fits_the_cap_and_nothing_waits_for_ever(
    cap: int, stuck: set[int], random: Random
) -> None:
    one = Driven(
        {T0: OffsetMap(0)},
        200,
        random.random,
        ordering="unordered",
        commit=Commit(every_records=1, metadata_max_bytes=cap),
        log_end=RECORDS,
    )
    one.load(T0, [None] * RECORDS)
    done: set[int] = set()
    fixed = False
    while len(done) < RECORDS:
        one.turn()
        free = [item for item in one.running if fixed or item.offset not in stuck]
        if not free:
            assert {item.offset for item in one.running} <= stuck, "what may run is held back by stuck records alone"
            assert one.running
            fixed = True
            continue
        for item in random.sample(free, random.randint(1, len(free))):
            one.end(item)
            done.add(item.offset)
        one.turn()
        assert len(one.commits[-1].metadata) <= cap
        said = one.committed(T0)
        assert said is not None
        assert set(said.incomplete) == set(range(said.base, max(done) + 1)) - done
        assert done.issuperset(range(said.base))
        assert said.base not in done


@settings(deadline=None)
@given(
    incomplete=st.sets(st.integers(10, 40), max_size=15),
    gaps=st.sets(st.integers(10, 60), max_size=15),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=20),
    random=st.randoms(),
)
def test_after_a_restart_exactly_the_incomplete_records_run(
    incomplete: set[int], gaps: set[int], sizes: list[int], random: Random
) -> None:
    offsets = OffsetMap(10, sorted(incomplete), 40)
    one = Driven({T0: offsets}, 1_000, random.random, ordering="unordered")
    log = [PlainMessage("t", 0, offset) for offset in range(10, 61) if offset not in gaps]
    polls = 0
    while log:
        size = sizes[polls % len(sizes)]
        polls += 1
        one.poll(T0, log[:size])
        log = log[size:]
    due = [offset for offset in range(10, 61) if offset not in gaps and not offsets.is_complete(offset)]
    assert [item.offset for item in one.turn()] == due
