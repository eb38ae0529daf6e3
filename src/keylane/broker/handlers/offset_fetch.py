"""OffsetFetch (9), versions 1-9: the committed offsets of a group.

v2: null topics mean all of the group, and an error for the whole; v5: leader epoch; v6: flexible; v7: require_stable
(an offset that an open transaction may change is UNSTABLE_OFFSET_COMMIT); v8: many groups; v9: member id and epoch (of
KIP-848; not used).
A known partition without a commit has offset -1 and no error; an unknown one has -1 and UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keylane.coordinator import codes
from keylane.wire.encoders_groups import FetchedGroup, FetchedOffsets, encode_offset_fetch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.offset_service import FetchedTopic

API_KEY = 9
MIN_VERSION = 1
MAX_VERSION = 9
LACKS = "member epochs (KIP-848)"

GROUP_ERROR_VERSION = 2
REQUIRE_STABLE_VERSION = 7
MANY_GROUPS_VERSION = 8


def begin(request: Any, header: RequestHeader, node: Node) -> list[bytes]:
    version = header.api_version
    asked = request.groups if version >= MANY_GROUPS_VERSION else (request,)
    require_stable = version >= REQUIRE_STABLE_VERSION and request.require_stable
    return encode_offset_fetch(
        version, [_fetch(group, version, node, require_stable=require_stable) for group in asked]
    )


def _fetch(asked: Any, version: int, node: Node, *, require_stable: bool) -> FetchedGroup:
    topics = None if asked.topics is None else [(topic.name, list(topic.partition_indexes)) for topic in asked.topics]
    if version < GROUP_ERROR_VERSION and not topics:
        topics = None  # before null could say it, no topic meant all of them
    found = node.coordinator.fetch(asked.group_id, topics, require_stable=require_stable)
    if not isinstance(found, int):
        rows = [_row(fetched) for fetched in found]
        return FetchedGroup(asked.group_id, codes.NONE, rows)
    # A version that cannot name the error once names it at every partition.
    rows = _refused(topics or (), found) if version < GROUP_ERROR_VERSION else []
    return FetchedGroup(asked.group_id, found, rows)


def _row(fetched: FetchedTopic) -> FetchedOffsets:
    partitions, offsets, leader_epochs, metadata = fetched.columns
    return FetchedOffsets(fetched.topic, partitions, offsets, leader_epochs, metadata, fetched.errors)


def _refused(topics: Sequence[tuple[str, Sequence[int]]], error: int) -> list[FetchedOffsets]:
    rows = []
    for topic, partitions in topics:
        nothing = [-1] * len(partitions)
        rows.append(FetchedOffsets(topic, partitions, nothing, nothing, None, [error] * len(partitions)))
    return rows
