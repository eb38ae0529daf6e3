"""Traversal under any load: fair starves nothing, depth first keeps to its order, and a key has one record out."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.offsets import OffsetMap
from kit.driven import Driven

if TYPE_CHECKING:
    from random import Random


Shard = tuple[tuple[str, int], bytes | None]
LOADS = st.lists(
    st.lists(st.sampled_from(["hot", "hot", "hot", "a", "b", "c", "d"]), max_size=40), min_size=1, max_size=6
)
"""The keys of each partition's records. The first four partitions are of one topic, the others of two more."""


def dispatched(
    traversal: Literal["fair", "depth_first"], loads: list[list[str]], concurrency: int, random: Random
) -> list[tuple[Shard, int]]:
    """Partition and key of every record, in the order in which they start, and how many others started while it could
    have; records end in any order."""
    names = [(f"t{max(0, number - 3)}", number) for number in range(len(loads))]
    one = Driven(dict.fromkeys(names, OffsetMap(0)), concurrency, random.random, traversal=traversal, log_end=1_000)
    for name, keys in zip(names, loads, strict=True):
        one.load(name, [key.encode() for key in keys])
    order: list[tuple[Shard, int]] = []
    free_since: dict[Shard, int] = {}
    while True:
        for item in one.turn():
            shard = (item.name, item.message.key())
            order.append((shard, len(order) - free_since.get(shard, 0)))
        outside = [(item.name, item.message.key()) for item in one.running]
        assert len(set(outside)) == len(outside), "two records of a key at once"
        if not one.running:
            return order
        ended = random.choice(one.running)
        one.end(ended)
        free_since[ended.name, ended.message.key()] = len(order)


@settings(deadline=None)
@given(loads=LOADS, concurrency=st.integers(1, 8), random=st.randoms())
def test_fair_starts_every_record_within_one_turn_of_all_keys(
    loads: list[list[str]], concurrency: int, random: Random
) -> None:
    order = dispatched("fair", loads, concurrency, random)
    assert len(order) == sum(map(len, loads))
    most_keys = max(len(set(keys)) for keys in loads)
    turn = (most_keys + concurrency) * len(loads)
    for shard, waited in order:
        assert waited < turn, f"{shard} waited while {waited} others started"


@settings(deadline=None)
@given(loads=LOADS, random=st.randoms())
def test_depth_first_finishes_a_partition_and_in_it_a_key_before_the_next(
    loads: list[list[str]], random: Random
) -> None:
    order = [shard for shard, _ in dispatched("depth_first", loads, 1, random)]
    assert [name for name, _ in order] == sorted(name for name, _ in order)
    changes = sum(one != other for one, other in pairwise(order))
    assert changes == max(0, len(set(order)) - 1)
