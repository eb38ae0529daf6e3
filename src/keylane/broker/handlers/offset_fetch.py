"""OffsetFetch (9), versions 1-9: the committed offsets of a group.

v2: null topics mean all of the group, and an error for the whole; v5: leader epoch; v6: flexible; v7: require_stable
(an offset that an open transaction may change is UNSTABLE_OFFSET_COMMIT); v8: many groups; v9: member id and epoch (of
KIP-848; not used).
A known partition without a commit has offset -1 and no error; an unknown one has -1 and UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from keylane.wire import codes
from keylane.wire.encoders_groups import FetchedGroup, FetchedOffsets, encode_offset_fetch
from keylane.wire.requests import decode_offset_fetch
from keylane.wire.versions import request_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.coordinator.offset_service import FetchedTopic
    from keylane.wire.requests import OffsetFetch
    from keylane.wire.versions import RequestSchema

API_KEY = 9
MIN_VERSION = 1
MAX_VERSION = 9
LACKS = "member epochs (KIP-848)"

GROUP_ERROR_VERSION = 2


@functools.cache
def schema(version: int) -> RequestSchema:
    """kio's, with a decoder of our own."""
    flags = request_schema("offset_fetch", version)
    return flags._replace(read=lambda frame, position: (decode_offset_fetch(version, frame, position), 0))


def begin(request: Sequence[OffsetFetch], header: RequestHeader, node: Node) -> list[bytes]:
    return answer(request, header.api_version, node)


def answer(request: Sequence[OffsetFetch], version: int, node: Node) -> list[bytes]:
    """The body, in parts."""
    return encode_offset_fetch(version, [_fetch(asked, version, node) for asked in request])


def _fetch(asked: OffsetFetch, version: int, node: Node) -> FetchedGroup:
    topics = asked.topics
    found = node.coordinator.fetch(asked.group, topics, require_stable=asked.require_stable)
    if not isinstance(found, int):
        rows = [_row(fetched) for fetched in found]
        return FetchedGroup(asked.group, codes.NONE, rows)
    # A version that cannot name the error once names it at every partition.
    rows = _refused(topics or (), found) if version < GROUP_ERROR_VERSION else []
    return FetchedGroup(asked.group, found, rows)


def _row(fetched: FetchedTopic) -> FetchedOffsets:
    partitions, offsets, leader_epochs, metadata = fetched.columns
    return FetchedOffsets(fetched.topic, partitions, offsets, leader_epochs, metadata, fetched.errors)


def _refused(topics: Sequence[tuple[str, Sequence[int]]], error: int) -> list[FetchedOffsets]:
    rows = []
    for topic, partitions in topics:
        nothing = [-1] * len(partitions)
        rows.append(FetchedOffsets(topic, partitions, nothing, nothing, None, [error] * len(partitions)))
    return rows
