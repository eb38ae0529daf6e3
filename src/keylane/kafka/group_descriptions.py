"""Groups and their members as the client tells of them, from either of its two sources, as plain values.

The idea: `list_groups` gives the raw bytes that members exchange through the broker, so the assignment is read here
(Kafka's consumer protocol: version, topics with their partitions, user data); `describe_consumer_groups` gives objects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from keylane.telling import logger_of
from keylane.wire.primitives import FieldError, FieldReader

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logger_of("keylane.kafka")

Partition = tuple[str, int]
"""Topic and partition."""

_UUID_TAIL = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_CONSUMER_PROTOCOL = "consumer"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group and what it is assigned."""

    member_id: str
    client_id: str
    host: str
    group_instance_id: str | None
    """Of a static member; None for a dynamic one. Read off the member id, which coordinators begin with it."""
    assignment: tuple[Partition, ...]
    target: tuple[Partition, ...] = ()
    """What it is to be assigned once others have given it back (KIP-848)."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its coordinator and its members. `state` is `dead` for a group that does not exist."""

    group: str
    state: str
    """Kafka's name in lower case: stable, empty, preparing_rebalance, completing_rebalance, dead."""
    protocol: str
    """`classic`, or `consumer` for KIP-848's."""
    assignor: str
    """The partition assignor that the members agreed on; empty without members."""
    coordinator: str
    """`host:port`; empty when nobody coordinates the group."""
    members: tuple[Member, ...]


def no_group(group: str) -> GroupDescription:
    """The description of a group that does not exist."""
    return GroupDescription(group, "dead", "classic", "", "", ())


def described_by_list(found: Any) -> GroupDescription:
    """From `list_groups` (classic groups only)."""
    members = []
    for one in found.members:
        assignment: tuple[Partition, ...] = ()
        if found.protocol_type == _CONSUMER_PROTOCOL and one.assignment:
            assignment = _read_assignment(bytes(one.assignment), found.id, one.id)
        members.append(_member(one.id, one.client_id, one.client_host, assignment))
    return GroupDescription(
        found.id, _snake(found.state), "classic", found.protocol or "", _address(found.broker), _sorted(members)
    )


def described_by_admin(found: Any) -> GroupDescription:
    """From `describe_consumer_groups`."""
    members = []
    for one in found.members:
        member = _member(one.member_id, one.client_id, one.host, _partitions(one.assignment))
        members.append(replace(member, target=_partitions(one.target_assignment)))
    return GroupDescription(
        found.group_id,
        state_name(found.state),
        str(found.type.name).lower(),
        found.partition_assignor or "",
        _address(found.coordinator),
        _sorted(members),
    )


def _partitions(assignment: Any) -> tuple[Partition, ...]:
    assigned = assignment.topic_partitions if assignment else []
    return tuple(sorted((place.topic, place.partition) for place in assigned))


def state_name(state: Any) -> str:
    """The client's enum as Kafka's name in lower case."""
    return str(state.name).lower().replace("rebalancing", "rebalance")


def _snake(state: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", state).lower()


def _member(member_id: str, client_id: str, host: str, assignment: tuple[Partition, ...]) -> Member:
    prefix = _UUID_TAIL.sub("", member_id)
    static = prefix not in (member_id, client_id)
    return Member(member_id, client_id, host.removeprefix("/"), prefix if static else None, assignment)


def _sorted(members: list[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda one: (one.assignment, one.member_id)))


def _address(node: Any) -> str:
    return f"{node.host}:{node.port}" if node is not None else ""


def _read_assignment(data: bytes, group: str, member_id: str) -> tuple[Partition, ...]:
    """The partitions in a member's assignment; none, with a warning, when the bytes are not in Kafka's format."""
    reader = FieldReader(data)
    try:
        reader.int16()  # the version
        return tuple(sorted((topic, number) for topic, numbers in _topics(reader) for number in numbers))
    except FieldError as error:
        logger.warning("group %r: the assignment of member %s cannot be read: %s", group, member_id, error)
        return ()


def _topics(reader: FieldReader) -> Iterator[tuple[str, list[int]]]:
    for _ in reader.items():
        yield reader.string(), [reader.int32() for _ in reader.items()]
