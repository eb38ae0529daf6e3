"""OffsetFetch (9), versions 1-9: the committed offsets of a group.

v2: null topics mean all of the group, and an error for the whole; v5: leader epoch; v6: flexible; v7: require_stable
(an offset that an open transaction may change is UNSTABLE_OFFSET_COMMIT); v8: many groups; v9: member id and epoch (of
KIP-848; not used).
A known partition without a commit has offset -1 and no error; an unknown one has -1 and UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, NamedTuple

from keylane.wire import codes
from keylane.wire.encoders_groups import FETCH_FLEXIBLE_VERSION, FetchedGroup, FetchedOffsets, encode_offset_fetch
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


MANY_GROUPS_VERSION = 8
_OFFSET_AND_EPOCH = struct.Struct(">qi")
_ONE_TAIL = 9
"""Of an answer for one partition, from version 8 on: no metadata, error, and the group's error and tagged fields."""
MAX_KNOWN_BYTES = 8_192
"""A request for 2,000 partitions."""


@functools.cache
def schema(version: int) -> RequestSchema:
    """kio's, with a decoder of our own."""
    flags = request_schema("offset_fetch", version)
    return flags._replace(read=lambda frame, position: (decode_offset_fetch(version, frame, position), 0))


class _Known(NamedTuple):
    version: int
    groups: Sequence[OffsetFetch]
    one: _One | None


class _One(NamedTuple):
    """A request for one partition, and its answer up to the offset and from behind the leader epoch on."""

    group: str
    topic: str
    partition: int
    answer_size: bytes
    answer_head: bytes
    answer_tail: bytes


def recognise(frame: bytes, node: Node, *, alone: bool) -> bytes | None:  # noqa: ARG001
    """A request of which every byte but the correlation id came before."""
    if len(frame) > MAX_KNOWN_BYTES:
        return None
    known: _Known | None = node.known_requests.get(frame[:4] + frame[8:])
    if known is None:
        return None
    if known.one is not None:
        group, topic, partition, size, head, tail = known.one
        found = node.coordinator.fetch_known(group, topic, partition)
        if found is not None:
            return b"".join((size, frame[4:8], head, _OFFSET_AND_EPOCH.pack(*found), tail))
    parts = encode_offset_fetch(known.version, [_fetch(asked, known.version, node) for asked in known.groups])
    if known.version >= FETCH_FLEXIBLE_VERSION:
        parts.insert(0, b"\0")
    body = b"".join(parts)
    return b"".join(((len(body) + 4).to_bytes(4, "big"), frame[4:8], body))


def remember(frame: bytes, request: Sequence[OffsetFetch], node: Node) -> None:
    if len(frame) <= MAX_KNOWN_BYTES:
        node.known_requests.remember(frame[:4] + frame[8:], _Known(frame[3], request, _one(frame[3], request)))


def _one(version: int, request: Sequence[OffsetFetch]) -> _One | None:
    if version < MANY_GROUPS_VERSION or len(request) != 1:
        return None
    group, topics, _ = request[0]
    if topics is None or len(topics) != 1 or len(topics[0][1]) != 1:
        return None
    topic, partitions = topics[0]
    row = FetchedOffsets(topic, partitions, [0], [0], None, None)
    answer = b"\0" + b"".join(encode_offset_fetch(version, [FetchedGroup(group, codes.NONE, [row])]))
    start = len(answer) - _OFFSET_AND_EPOCH.size - _ONE_TAIL
    return _One(group, topic, partitions[0], (len(answer) + 4).to_bytes(4, "big"), answer[:start], answer[-_ONE_TAIL:])


def begin(request: Sequence[OffsetFetch], header: RequestHeader, node: Node) -> list[bytes]:
    version = header.api_version
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
