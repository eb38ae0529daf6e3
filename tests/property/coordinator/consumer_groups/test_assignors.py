"""Each partition has one member that subscribes to it; shares are as even as they can be; little moves."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.coordinator.consumer_groups.assignors import ASSIGNORS, Subscriber, range_assignor, uniform_assignor


@dataclass(frozen=True)
class FakeTopic:
    topic_id: uuid.UUID
    partition_count: int


NAMES = ("a", "b", "c")
TOPICS = st.tuples(*(st.integers(1, 9) for _ in NAMES)).map(
    lambda counts: {
        name: FakeTopic(uuid.UUID(int=number + 1), count)
        for number, (name, count) in enumerate(zip(NAMES, counts, strict=True))
    }
)
SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(7)]), st.frozensets(st.sampled_from(NAMES)), min_size=1
)
Has = dict[str, dict[uuid.UUID, frozenset[int]]]


def members(subscriptions: dict[str, frozenset[str]], has: Has) -> dict[str, Subscriber]:
    return {name: Subscriber(None, topics, has.get(name, {})) for name, topics in subscriptions.items()}


def owners(targets: Has) -> dict[tuple[uuid.UUID, int], str]:
    rows = [(topic, one, name) for name, has in targets.items() for topic, ones in has.items() for one in ones]
    found = {(topic, one): name for topic, one, name in rows}
    assert len(found) == len(rows), "a partition has two owners"
    return found


@settings(deadline=None)
@pytest.mark.parametrize("name", ASSIGNORS)
@given(TOPICS, SUBSCRIPTIONS, SUBSCRIPTIONS)
def test_each_partition_has_one_subscriber(
    name: str, topics: dict[str, FakeTopic], before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]
) -> None:
    first = ASSIGNORS[name](members(before, {}), topics)
    found = owners(ASSIGNORS[name](members(after, first), topics))
    wanted = {
        (topics[topic].topic_id, one)
        for topic in frozenset().union(*after.values())
        for one in range(topics[topic].partition_count)
    }
    assert found.keys() == wanted
    names = {topic.topic_id: name for name, topic in topics.items()}
    assert all(names[topic] in after[owner] for (topic, _), owner in found.items())


@settings(deadline=None)
@given(TOPICS, st.integers(1, 6), st.integers(1, 6))
def test_uniform_shares_are_even_and_sticky(topics: dict[str, FakeTopic], before: int, after: int) -> None:
    everything = frozenset(NAMES)
    first = uniform_assignor(members({f"m{n}": everything for n in range(before)}, {}), topics)
    second = uniform_assignor(members({f"m{n}": everything for n in range(after)}, first), topics)
    sizes = [sum(map(len, has.values())) for has in second.values()]
    assert max(sizes) - min(sizes) <= 1
    old, new = owners(first), owners(second)
    moved = sum(old[one] != owner for one, owner in new.items())
    if after >= before:  # those that came take their share, and nothing else moves
        assert moved == sum(sizes[before:])
    else:
        assert moved == sum(sum(map(len, first[f"m{n}"].values())) for n in range(after, before))


@settings(deadline=None)
@given(TOPICS, SUBSCRIPTIONS)
def test_uniform_levels_different_subscriptions(
    topics: dict[str, FakeTopic], subscriptions: dict[str, frozenset[str]]
) -> None:
    targets = uniform_assignor(members(subscriptions, {}), topics)
    sizes = {name: sum(map(len, has.values())) for name, has in targets.items()}
    names = {topic.topic_id: name for name, topic in topics.items()}
    for (topic, _), owner in owners(targets).items():
        takers = [name for name, wanted in subscriptions.items() if names[topic] in wanted]
        assert sizes[owner] - min(sizes[name] for name in takers) <= 1


def test_range_keeps_neighbours_together_and_static_members_in_place() -> None:
    topics = {name: FakeTopic(uuid.UUID(int=number), 3) for number, name in enumerate("ab", 1)}
    both = frozenset("ab")
    targets = range_assignor({"z": Subscriber("i1", both, {}), "a": Subscriber(None, both, {})}, topics)
    assert [sorted(map(sorted, targets[name].values())) for name in ("z", "a")] == [[[0, 1], [0, 1]], [[2], [2]]]
