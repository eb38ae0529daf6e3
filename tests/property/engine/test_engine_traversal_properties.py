"""Traversal under any load: fair starves nothing, depth first keeps to its order, and a key has one record out."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.engine.admission import HandOver
from keylane.engine.assignment import Start
from keylane.engine.core import Core
from keylane.engine.work import Work
from keylane.offsets import OffsetMap
from keylane.options import Pipeline
from keylane.records import PlainMessage
from keylane.testing.simulated_workers import SomeWorkers

if TYPE_CHECKING:
    from random import Random


Name = tuple[str, int]
LOADS = st.lists(
    st.lists(st.sampled_from(["hot", "hot", "hot", "a", "b", "c", "d"]), max_size=40), min_size=1, max_size=6
)
"""The keys of each partition's records. The first four partitions are of one topic, the others of two more."""


def nothing(_: Any) -> None:
    """Never called."""


def dispatched(
    traversal: Literal["fair", "depth_first"], loads: list[list[str]], concurrency: int, random: Random
) -> list[tuple[Name, bytes | None]]:
    """Partition and key of every record, in the order in which they start; records end in any order."""
    kafka = {"bootstrap.servers": "nowhere:1", "group.id": "g"}
    pipeline = Pipeline(kafka=kafka, topics=["t0", "t1", "t2"], handler=nothing, traversal=traversal)
    core = Core(pipeline, HandOver.to(pipeline, SomeWorkers(concurrency)), random=random.random)
    names = [(f"t{max(0, number - 3)}", number) for number in range(len(loads))]
    core.assigned([Start(*name, 1, OffsetMap(0), 0, 1_000) for name in names], 0.0)
    for name, keys in zip(names, loads, strict=True):
        if keys:
            core.polled(name, 1, [PlainMessage(*name, offset, key.encode()) for offset, key in enumerate(keys)])
    order: list[tuple[Name, bytes | None]] = []
    running: list[Work] = []
    while True:
        for work in core.plan(0.0).dispatch:
            assert isinstance(work, Work)
            order.append((work.assignment.name, work.message.key()))
            running.append(work)
        outside = [(work.assignment.name, work.message.key()) for work in running]
        assert len(set(outside)) == len(outside), "two records of a key at once"
        if not running:
            return order
        ended = running.pop(random.randrange(len(running)))
        ended.outcome = None
        core.completed([ended], 0.0)


@settings(deadline=None)
@given(loads=LOADS, concurrency=st.integers(1, 8), random=st.randoms())
def test_fair_starts_every_key_within_one_turn_of_all(loads: list[list[str]], concurrency: int, random: Random) -> None:
    order = dispatched("fair", loads, concurrency, random)
    assert len(order) == sum(map(len, loads))
    most_keys = max(len(set(keys)) for keys in loads)
    turn = (most_keys + concurrency) * len(loads)
    for shard in set(order):
        assert order.index(shard) < turn, f"{shard} started after {order.index(shard)} others"


@settings(deadline=None)
@given(loads=LOADS, random=st.randoms())
def test_depth_first_finishes_a_partition_and_in_it_a_key_before_the_next(
    loads: list[list[str]], random: Random
) -> None:
    order = dispatched("depth_first", loads, 1, random)
    assert [name for name, _ in order] == sorted(name for name, _ in order)
    changes = sum(one != other for one, other in pairwise(order))
    assert changes == max(0, len(set(order)) - 1)
