"""What a member of a share group says of records, in a ShareFetch or a ShareAcknowledge: read, done, made durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.broker.share_sessions import Member
from keylane.broker.topics import NO_TOPIC_ID
from keylane.coordinator.share_groups.partition import RENEW, Acknowledgement
from keylane.coordinator.share_groups.records import Place
from keylane.wire import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.broker.share_sessions import Partition
    from keylane.coordinator.share_service import ShareService
    from keylane.wire.versions import Entity

MOST_MEMBER_ID_CHARACTERS = 36
"""A member's id is a UUID of its own making."""

Said = dict["Partition", list[Acknowledgement]]


def member_of(request: Entity) -> Member | None:
    """Whose request it is; None for nobody's."""
    group, name = request.group_id or "", request.member_id or ""
    return Member(group, name) if group and 0 < len(name) <= MOST_MEMBER_ID_CHARACTERS else None


def said_in(topics: Entity) -> Said:
    """By partition, in the order of the request."""
    return {
        (topic.topic_id or NO_TOPIC_ID, one.partition_index): [
            Acknowledgement(batch.first_offset, batch.last_offset, tuple(batch.acknowledge_types))
            for batch in one.acknowledgement_batches
        ]
        for topic in topics
        for one in topic.partitions
        if one.acknowledgement_batches
    }


def may_not_renew(said: Sequence[Acknowledgement], *, is_allowed: bool) -> bool:
    """Whether it renews, though its request does not say so."""
    return not is_allowed and any(RENEW in one.types for one in said)


async def acknowledge(
    share: ShareService, member: Member, said: Said, is_refused: Callable[[Sequence[Acknowledgement]], bool]
) -> dict[Partition, int]:
    """An error code for each partition, when all of it is durable."""
    told = {}
    for (topic, index), batches in said.items():
        place = Place(member.group, topic, index)
        is_wrong = is_refused(batches)
        told[topic, index] = codes.INVALID_REQUEST if is_wrong else share.acknowledge(place, member.member_id, batches)
    failure = await share.settled(member.group) if told else codes.NONE
    return {one: code or failure for one, code in told.items()}
