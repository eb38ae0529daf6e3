"""ShareAcknowledge (79), versions 1-2: what a member of a share group says of the records that it has (KIP-932).

v2: records that are kept for longer (KIP-1222). Answered when what it says is durable.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from keylane.broker.share_acknowledgements import acknowledge, may_not_renew, member_of, said_in
from keylane.broker.share_sessions import CLOSING
from keylane.wire import codes
from keylane.wire.versions import entity, response_module

if TYPE_CHECKING:
    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.broker.share_sessions import Partition
    from keylane.wire.versions import Entity

API_KEY = 79
MIN_VERSION = 1
MAX_VERSION = 2
LACKS = "nothing"

_MILLISECOND = datetime.timedelta(milliseconds=1)


async def handle(request: Entity, header: RequestHeader, node: Node) -> Entity:
    share = node.coordinator.share
    member = member_of(request)
    error = codes.NONE if member is not None else codes.INVALID_REQUEST
    error = error or node.coordinator.check_share(request.group_id or "")
    if error != codes.NONE or share is None or member is None:
        return _answer(header.api_version, {}, 0, error)
    error = node.share_sessions.acknowledge(member, request.share_session_epoch)
    if error != codes.NONE:
        return _answer(header.api_version, {}, 0, error)
    is_renewal = getattr(request, "is_renew_ack", False)
    said = said_in(request.topics)
    told = await acknowledge(share, member, said, is_refused=lambda one: may_not_renew(one, is_allowed=is_renewal))
    if request.share_session_epoch == CLOSING:
        node.close_share_session(member)
    return _answer(header.api_version, told, share.groups.settings_of(member.group).limits.lock_ms)


def _answer(version: int, told: dict[Partition, int], lock_ms: int, error: int = codes.NONE) -> Entity:
    module = response_module("share_acknowledge", version)
    leader = module.LeaderIdAndEpoch(leader_id=0, leader_epoch=0)
    by_topic = defaultdict(list)
    for (topic, index), code in told.items():
        by_topic[topic].append((index, code))
    topics = tuple(
        module.ShareAcknowledgeTopicResponse(
            topic_id=topic,
            partitions=tuple(
                module.PartitionData(
                    partition_index=index, error_code=ErrorCode(code), error_message=None, current_leader=leader
                )
                for index, code in partitions
            ),
        )
        for topic, partitions in by_topic.items()
    )
    return entity(
        module.ShareAcknowledgeResponse,
        throttle_time=datetime.timedelta(0),
        error_code=ErrorCode(error),
        error_message=None,
        acquisition_lock_timeout=lock_ms * _MILLISECOND,
        responses=topics,
        node_endpoints=(),
    )
