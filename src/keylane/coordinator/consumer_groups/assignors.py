"""Server-side assignors: which member is to have which partition. Pure, and the same for the same input.

`range` gives each member a row of neighbouring partitions of every topic, so that topics of as many partitions are
split alike. `uniform` gives all as many partitions as it can, and moves as few as it can from where they are.

Source: Apache Kafka's `RangeAssignor` and `UniformAssignor`. Where its order of members or topics follows from a hash
map, the order here is that of their names. A uniform group whose members subscribe differently is levelled by the
members' totals: Kafka levels topic by topic.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping

    from keylane.coordinator.consumer_groups.records import Target

    One = tuple[uuid.UUID, int]


class Topic(Protocol):
    """What there is of a topic."""

    @property
    def topic_id(self) -> uuid.UUID: ...
    @property
    def partition_count(self) -> int: ...


def metadata_hash(topics: Mapping[str, Topic]) -> int:
    """Of the topics that members subscribe to: their names, ids and partitions, in 64 bits; 0 for no topic."""
    if not topics:
        return 0
    text = ";".join(f"{name}={topic.topic_id}:{topic.partition_count}" for name, topic in sorted(topics.items()))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True) or 1


class Subscriber(NamedTuple):
    """A member, as an assignor sees it."""

    instance_id: str | None
    topics: frozenset[str]
    """Those that it subscribes to; only topics that exist."""
    has: Target
    """What it was to have before."""


def range_assignor(members: Mapping[str, Subscriber], topics: Mapping[str, Topic]) -> dict[str, Target]:
    """Static members come first, by instance id, so that one that comes back under a new id has the same place."""
    order = sorted(members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or name))
    targets: dict[str, Target] = {name: {} for name in members}
    for topic in sorted({topic for member in members.values() for topic in member.topics}):
        subscribers = [name for name in order if topic in members[name].topics]
        quota, extra = divmod(topics[topic].partition_count, len(subscribers))
        start = 0
        for place, name in enumerate(subscribers):
            end = start + quota + (place < extra)
            if end > start:
                targets[name][topics[topic].topic_id] = frozenset(range(start, end))
            start = end
    return targets


def uniform_assignor(members: Mapping[str, Subscriber], topics: Mapping[str, Topic]) -> dict[str, Target]:
    """Everyone keeps what it may, up to its share; what is left goes to those that have the least."""
    owned = _kept(members, topics)
    held = {one for ones in owned.values() for one in ones}
    subscriptions = {member.topics for member in members.values()}
    free = [
        (topics[topic].topic_id, partition)
        for topic in sorted(frozenset().union(*subscriptions))
        for partition in range(topics[topic].partition_count)
        if (topics[topic].topic_id, partition) not in held
    ]
    if len(subscriptions) == 1:
        _share_evenly(owned, free, len(held) + len(free))
    else:
        names = {topic.topic_id: name for name, topic in topics.items()}
        wanted = {name: {topics[topic].topic_id for topic in members[name].topics} for name in members}
        _give_to_least(owned, sorted(free, key=lambda one: (names[one[0]], one[1])), wanted)
        _level(owned, wanted)
    return {name: _by_topic(ones) for name, ones in owned.items()}


def _kept(members: Mapping[str, Subscriber], topics: Mapping[str, Topic]) -> dict[str, list[One]]:
    """What each member had, and may keep."""
    owned: dict[str, list[One]] = {}
    for name in sorted(members):
        counts = {topics[topic].topic_id: topics[topic].partition_count for topic in members[name].topics}
        owned[name] = [
            (topic_id, partition)
            for topic_id, partitions in sorted(members[name].has.items())
            for partition in sorted(partitions)
            if partition < counts.get(topic_id, 0)
        ]
    return owned


def _share_evenly(owned: dict[str, list[One]], free: list[One], total: int) -> None:
    """All subscribe to the same: each gets the same number, and those that have most get what does not divide."""
    quota, extra = divmod(total, len(owned))
    order = sorted(owned, key=lambda name: -len(owned[name]))
    shares = {name: quota + (place < extra) for place, name in enumerate(order)}
    for name in order:
        free += owned[name][shares[name] :]
        del owned[name][shares[name] :]
    for name in order:
        missing = shares[name] - len(owned[name])
        owned[name] += free[:missing]
        del free[:missing]


def _give_to_least(owned: dict[str, list[One]], free: Iterable[One], wanted: Mapping[str, set[uuid.UUID]]) -> None:
    """Topics with few subscribers first: they have the least choice."""
    takers: dict[uuid.UUID, list[str]] = defaultdict(list)
    for name, topics in wanted.items():
        for topic in topics:
            takers[topic].append(name)
    for one in sorted(free, key=lambda one: len(takers[one[0]])):
        owned[min(takers[one[0]], key=lambda name: (len(owned[name]), name))].append(one)


def _level(owned: dict[str, list[One]], wanted: Mapping[str, set[uuid.UUID]]) -> None:
    """Move one partition at a time from a member to one that has two less or fewer. The sum of squares shrinks with
    each move, so it ends."""
    is_moving = True
    while is_moving:
        is_moving = False
        for giver in sorted(owned, key=lambda name: (-len(owned[name]), name)):
            for one in reversed(owned[giver]):
                takers = [name for name in owned if one[0] in wanted[name]]
                taker = min(takers, key=lambda name: (len(owned[name]), name))
                if len(owned[giver]) - len(owned[taker]) >= 2:
                    owned[giver].remove(one)
                    owned[taker].append(one)
                    is_moving = True
                    break


def _by_topic(ones: Iterable[One]) -> Target:
    found: dict[uuid.UUID, set[int]] = defaultdict(set)
    for topic, partition in sorted(ones):
        found[topic].add(partition)
    return {topic: frozenset(partitions) for topic, partitions in found.items()}


ASSIGNORS: dict[str, Callable[[Mapping[str, Subscriber], Mapping[str, Topic]], dict[str, Target]]] = {
    "uniform": uniform_assignor,
    "range": range_assignor,
}
"""By name; the first is the default."""
