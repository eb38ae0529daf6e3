"""From a group of the classic protocol to a consumer group of KIP-848 and back, while it has members. Pure.

Who is in the group, and who has what, is the same before and after. Upwards the generation becomes the epoch, and what
the leader had assigned becomes both target and what members have. Downwards members get their targets as assignments,
and join for another generation at once.

Source: Apache Kafka's `ConsumerGroup.fromClassicGroup` and `ClassicGroup.fromConsumerGroup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.coordinator.consumer_groups.assignors import metadata_hash
from keylane.coordinator.consumer_groups.embedded import encode_assignment, read_assignment, read_subscription
from keylane.coordinator.consumer_groups.records import (
    CURRENT,
    GROUP,
    MEMBER,
    STABLE,
    TARGET,
    TARGET_EPOCH,
    ClassicMember,
    Current,
    Group,
    Member,
    Record,
    TargetAssignment,
    TargetEpoch,
)
from keylane.coordinator.formats import GroupValue, MemberValue
from keylane.coordinator.groups.members import choose_protocol

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Mapping

    from keylane.coordinator.consumer_groups.protocol import Topics
    from keylane.coordinator.consumer_groups.records import Target
    from keylane.coordinator.groups.members import Member as MemberOfClassic

CONSUMER_PROTOCOL_TYPE = "consumer"


def upgraded(generation: int, protocol: str | None, members: Iterable[MemberOfClassic], topics: Topics) -> list[Record]:
    """The records of the consumer group that a group of the classic protocol becomes, but for the end of its own.
    Raises `RecordFormatError` where what its members or its leader have said is not of the consumer protocol."""
    found = [(member.member_id, *_upgraded(member, protocol, topics)) for member in members]
    named = {name for _, member, _ in found for name in member.topics}
    known = {name: topic for name in named if (topic := topics.get(name)) is not None}
    return [
        *(Record(MEMBER, name, member) for name, member, _ in found),
        Record(GROUP, "", Group(generation, metadata_hash(known))),
        *(Record(TARGET, name, TargetAssignment(has)) for name, _, has in found),
        Record(TARGET_EPOCH, "", TargetEpoch(generation)),
        *(Record(CURRENT, name, _current(generation, has)) for name, _, has in found),
    ]


def _upgraded(member: MemberOfClassic, protocol: str | None, topics: Topics) -> tuple[Member, Target]:
    first = member.protocols[0][0] if protocol is None else protocol
    said = read_subscription(member.metadata(first))
    found = ((topics.get(name), ones) for name, ones in read_assignment(member.assignment).items())
    return Member(
        member.instance_id,
        said.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(set(said.topics))),
        "",
        member.rebalance_timeout_ms,
        None,
        ClassicMember(member.session_timeout_ms, member.protocols),
    ), {topic.topic_id: ones for topic, ones in found if topic is not None and ones}


def _current(generation: int, has: Mapping[uuid.UUID, frozenset[int]]) -> Current:
    assigned = {topic: dict.fromkeys(sorted(ones), generation) for topic, ones in has.items()}
    return Current(generation, generation, STABLE, assigned, {})


def downgraded(
    epoch: int, members: Mapping[str, Member], targets: Mapping[str, Target], topics: Topics, now_ms: int
) -> GroupValue:
    """The group of the classic protocol that a consumer group becomes, of whose members all use that protocol."""
    protocols = {name: member.classic.protocols for name, member in members.items() if member.classic is not None}
    protocol = choose_protocol(list(protocols.values()))
    values = []
    for name, member in members.items():
        assert member.classic is not None, name
        metadata = dict(member.classic.protocols)[protocol]
        named = ((topics.name_of(topic), ones) for topic, ones in targets.get(name, {}).items())
        assignment = {topic: ones for topic, ones in named if topic is not None}
        values.append(
            MemberValue(
                name,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                metadata,
                encode_assignment(read_subscription(metadata).version, assignment),
            )
        )
    leader = next(iter(members), None)
    return GroupValue(CONSUMER_PROTOCOL_TYPE, epoch, protocol, leader, now_ms, tuple(values))
