"""The simple assignor: nobody idle, nothing unread, and no one with much more than another."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from keylane.coordinator.share_groups.assignor import assign


class Topic(NamedTuple):
    topic_id: uuid.UUID
    partition_count: int


TOPICS = st.dictionaries(st.sampled_from("tuvw"), st.integers(1, 5), max_size=4).map(
    lambda counts: {name: Topic(uuid.UUID(int=ord(name)), count) for name, count in counts.items()}
)
MEMBERS = st.dictionaries(st.sampled_from("abcdefg"), st.frozensets(st.sampled_from("tuvw")), min_size=1)


@given(MEMBERS, TOPICS)
def test_everything_is_read_and_nobody_is_idle(members: dict[str, frozenset[str]], topics: dict[str, Topic]) -> None:
    found = assign(members, topics)
    assert found.keys() == members.keys()
    names = {topic.topic_id: name for name, topic in topics.items()}
    for member, assigned in found.items():
        assert all(names[topic] in members[member] and ones for topic, ones in assigned.items())
        assert bool(assigned) == bool(members[member] & topics.keys())
    for name, topic in topics.items():
        readers = [one for one in members if name in members[one]]
        read = {partition for one in readers for partition in found[one].get(topic.topic_id, ())}
        assert read == (set(range(topic.partition_count)) if readers else set())


@given(st.integers(1, 9), st.integers(1, 9))
def test_equal_members_have_equal_shares(members: int, partitions: int) -> None:
    topic = Topic(uuid.UUID(int=1), partitions)
    found = assign({f"m{one}": frozenset("t") for one in range(members)}, {"t": topic})
    sizes = [len(assigned[topic.topic_id]) for assigned in found.values()]
    readers = [sum(one in assigned[topic.topic_id] for assigned in found.values()) for one in range(partitions)]
    assert max(sizes) - min(sizes) <= 1
    assert max(readers) - min(readers) <= 1
