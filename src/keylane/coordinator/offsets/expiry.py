"""Which committed offsets are stale, purely: the store, a group's state and the time in, partitions out.

The rules are KIP-211's, which are what became of S2's `compact`:

- A group without members, or one that never had any (a simple consumer): an offset is stale when the retention has
  passed since it was committed *and* since the group became empty. (Apache Kafka forgets the first of the two, so an
  offset that an administrator commits for a group that is long empty goes with the next check: docs/adr/0020.)
- A stable group of consumers: only offsets in topics that no member subscribes to, by their commit.
- A group in a rebalance, or of another protocol type: none, for nobody knows what its members need.
- An offset that was committed with a retention time of its own (OffsetCommit 2 to 4) goes when that has passed, in
  the groups and topics of the rules above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keylane.coordinator.groups.states import State

if TYPE_CHECKING:
    from keylane.coordinator.groups.group import Group
    from keylane.coordinator.offsets.store import OffsetStore


class Rule(NamedTuple):
    """Which offsets of a group may go at all."""

    kept_topics: frozenset[str] = frozenset()
    """Those of topics that members subscribe to stay."""
    since_ms: int = 0
    """No retention began before this."""


def rule_of(group: Group | None) -> Rule | None:
    """The rule for a group (None: it has no members and never had); None when nothing of it may go."""
    if group is None or not group.protocol_type:
        return Rule()
    if group.state is State.EMPTY:
        return Rule(since_ms=group.state_timestamp_ms)
    topics = group.subscribed_topics
    if group.state is State.STABLE and topics is not None:
        return Rule(topics)
    return None


def stale_offsets(
    store: OffsetStore, group: str, rule: Rule | None, *, now_ms: int, retention_ms: int
) -> list[tuple[str, list[int]]]:
    """The partitions whose offsets are to go, by topic."""
    if rule is None:
        return []
    committed_before = now_ms - retention_ms
    if rule.since_ms > committed_before:
        committed_before = -1  # the retention has not passed for any: only what has its own can go
    stale = store.stale(group, committed_before, now_ms)
    return [(topic, partitions) for topic, partitions in stale if topic not in rule.kept_topics]
