"""The simple assignor: who of a share group's members reads which partition. Pure, and the same for the same input.

Members of a share group may read the same partition side by side. So every partition has a member, every member a
partition of the topics that it subscribes to, and neither has many more than another: members and partitions are
dealt out in turn, as often as it takes for the longer of both rows.

Source: KIP-932's `SimpleAssignor`. Where its choice follows from hashes and from what was before, the one here is by
the order of names: a member that moves loses nothing, since its records are anyone's.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from keylane.coordinator.consumer_groups.assignors import Topic
    from keylane.coordinator.share_groups.records import Assigned

NAME = "simple"


def assign(members: Mapping[str, frozenset[str]], topics: Mapping[str, Topic]) -> dict[str, Assigned]:
    """By member; `members` has the topics that each subscribes to, `topics` those that exist."""
    by_readers: dict[tuple[str, ...], list[tuple[uuid.UUID, int]]] = defaultdict(list)
    for name in sorted(topics):
        readers = tuple(sorted(member for member, wanted in members.items() if name in wanted))
        by_readers[readers] += ((topics[name].topic_id, one) for one in range(topics[name].partition_count))
    found: dict[str, dict[uuid.UUID, set[int]]] = {member: defaultdict(set) for member in members}
    for readers, partitions in by_readers.items():
        if not readers:
            continue
        for turn in range(max(len(readers), len(partitions))):
            topic, one = partitions[turn % len(partitions)]
            found[readers[turn % len(readers)]][topic].add(one)
    return {member: {topic: frozenset(ones) for topic, ones in assigned.items()} for member, assigned in found.items()}
