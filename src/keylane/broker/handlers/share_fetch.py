"""ShareFetch (78), versions 1-2: records for a member of a share group, which are its from then on, and what it says of
those that it has (KIP-932).

v2: never more records than asked for, where that is asked (KIP-1206); and records that are kept for longer (KIP-1222).
What a member says holds, durably, before new records are looked for.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from keylane.broker.share_acknowledgements import acknowledge, may_not_renew, member_of, said_in
from keylane.broker.share_reads import NOTHING, Shared, ShareFetch, ShareRequest
from keylane.broker.share_sessions import CLOSING
from keylane.broker.topics import NO_TOPIC_ID
from keylane.wire import codes
from keylane.wire.primitives import (
    EMPTY_TAGS,
    compact_array_length,
    compact_string,
    int16,
    int32,
    unsigned_varint,
)

if TYPE_CHECKING:
    import uuid

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.broker.share_sessions import Partition
    from keylane.wire.versions import Entity

API_KEY = 78
MIN_VERSION = 1
MAX_VERSION = 2
MAY_POLL = True
HAS_LARGE_ANSWERS = True
LACKS = "nothing"

STRICT = 1
"""Of KIP-1206: never more than MaxRecords."""


async def handle(request: Entity, header: RequestHeader, node: Node) -> list[bytes]:
    share, sessions = node.coordinator.share, node.share_sessions
    member = member_of(request)
    is_renewal = getattr(request, "is_renew_ack", False)
    error = codes.NONE if member is not None else codes.INVALID_REQUEST
    if is_renewal and (request.max_bytes or request.min_bytes or request.max_records or request.max_wait):
        error = codes.INVALID_REQUEST  # it renews, and takes no more
    error = error or node.coordinator.check_share(request.group_id or "")
    if error != codes.NONE or share is None or member is None:
        return encode({}, {}, 0, error)
    said = said_in(request.topics)
    named = [
        (topic.topic_id or NO_TOPIC_ID, one.partition_index) for topic in request.topics for one in topic.partitions
    ]
    forgotten = [
        (topic.topic_id or NO_TOPIC_ID, one) for topic in request.forgotten_topics_data for one in topic.partitions
    ]
    epoch = request.share_session_epoch
    error = sessions.fetch(member, epoch, named, forgotten, header.session, acknowledges=bool(said))
    if error != codes.NONE:
        return encode({}, {}, 0, error)
    node.watch_share_session(member, header.session)
    lock_ms = share.groups.settings_of(member.group).limits.lock_ms
    told = await acknowledge(share, member, said, is_refused=lambda one: may_not_renew(one, is_allowed=is_renewal))
    if epoch == CLOSING:
        node.close_share_session(member)
        return encode({}, told, lock_ms)
    if is_renewal:
        return encode({}, told, lock_ms)
    is_strict = getattr(request, "share_acquire_mode", 0) == STRICT
    # What a member said is answered at once.
    wait_s = 0.0 if told else request.max_wait.total_seconds()
    max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
    min_bytes = min(request.min_bytes, max_bytes)
    wanted = ShareRequest(request.max_records, request.batch_size, min_bytes, max_bytes, wait_s, is_strict)
    found = await ShareFetch(node, share, member, wanted, header.room).run(sessions.partitions(member))
    return encode(found, told, lock_ms)


_OFFSETS = struct.Struct(">qqh")
_NO_MESSAGE = compact_string(None)
_NO_LEADER = int32(0) + int32(0) + EMPTY_TAGS


def encode(
    found: dict[Partition, Shared], told: dict[Partition, int], lock_ms: int, error: int = codes.NONE
) -> list[bytes]:
    """The response's body, in parts: record bytes are not copied before the frame is joined."""
    by_topic: dict[uuid.UUID, list[int]] = {}
    for topic, index in dict.fromkeys([*found, *told]):
        by_topic.setdefault(topic, []).append(index)
    parts = [int32(0), int16(error), _NO_MESSAGE, int32(lock_ms), compact_array_length(len(by_topic))]
    for topic, indexes in by_topic.items():
        parts += (topic.bytes, compact_array_length(len(indexes)))
        for index in indexes:
            shared = found.get((topic, index), NOTHING)
            parts += (int32(index), int16(shared.code), _NO_MESSAGE)
            parts += (int16(told.get((topic, index), codes.NONE)), _NO_MESSAGE, _NO_LEADER)
            parts += (unsigned_varint(len(shared.records) + 1), shared.records)
            parts.append(compact_array_length(len(shared.acquired)))
            parts += [_OFFSETS.pack(*one) + EMPTY_TAGS for one in shared.acquired]
            parts.append(EMPTY_TAGS)
        parts.append(EMPTY_TAGS)
    parts += (compact_array_length(0), EMPTY_TAGS)
    return parts
