"""Fetch (1), versions 4-12: record batches from an offset on, waiting until enough of them are there.

v5: log start offset; v7: sessions (KIP-227), which this broker does not keep: it answers every full fetch with session
id 0, so clients go on sending full ones; v9: leader epochs; v12: flexible. Compressed batches pass through as they are.
A consumer of committed records is given what lies below the last stable offset, and the aborted transactions in it.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

from keylane.broker.reads import LogRead, OffsetsRead, PartitionRead
from keylane.coordinator.formats import OFFSETS_TOPIC
from keylane.wire import codes
from keylane.wire.primitives import (
    EMPTY_TAGS,
    array_length,
    compact_array_length,
    compact_string,
    int16,
    int32,
    int64,
    string,
    unsigned_varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keylane.broker.dispatch import RequestHeader
    from keylane.broker.node import Node
    from keylane.broker.reads import FetchedPartition

API_KEY = 1
MIN_VERSION = 4
MAX_VERSION = 12
MAY_POLL = True
HAS_LARGE_ANSWERS = True
LACKS = (
    "fetch sessions (every fetch is a full one); rack awareness; isolation in __consumer_offsets (all of it is given)"
)

FLEXIBLE_VERSION = 12
_SESSION_VERSION = 7
_READ_COMMITTED = 1


class _Arrival:
    """Counts the bytes that become visible, and wakes the fetch when they suffice or a log is closed."""

    def __init__(self, needed: int) -> None:
        self.is_enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._needed = needed

    def __call__(self, new_bytes: int) -> None:
        self._needed -= new_bytes
        if (self._needed <= 0 or new_bytes == 0) and not self.is_enough.done():
            self.is_enough.set_result(None)


async def handle(request: Any, header: RequestHeader, node: Node) -> list[bytes]:
    version = header.api_version
    if version >= _SESSION_VERSION and request.session_id != 0 and request.session_epoch > 0:
        return encode(version, (), error_code=codes.FETCH_SESSION_ID_NOT_FOUND)
    max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
    committed_only = request.isolation_level == _READ_COMMITTED
    topics = []
    every: list[PartitionRead] = []
    for topic in request.topics:
        reads = [_read_of(node, topic.topic, wanted, committed_only=committed_only) for wanted in topic.partitions]
        for read, wanted in zip(reads, topic.partitions, strict=True):
            await read.locate(getattr(wanted, "current_leader_epoch", -1))
        topics.append((topic.topic, reads))
        every += reads
    wait_s = request.max_wait.total_seconds()
    missing = min(request.min_bytes, max_bytes) - sum(read.available for read in every)
    if missing > 0 and wait_s > 0 and all(read.code == codes.NONE for read in every):
        logs = [read.log for read in every if read.log is not None]
        await _wait([log.stable_listeners if committed_only else log.listeners for log in logs], missing, wait_s)
    return encode(version, await _read_all(topics, max_bytes))


def _read_of(node: Node, topic: str, wanted: Any, *, committed_only: bool) -> PartitionRead:
    if topic == OFFSETS_TOPIC:
        return OffsetsRead(node.offsets_topic, wanted)
    return LogRead(node.topics.log(topic, wanted.partition), wanted, committed_only=committed_only)


async def _read_all(
    topics: list[tuple[str, list[PartitionRead]]], max_bytes: int
) -> list[tuple[str, list[FetchedPartition]]]:
    """Records of all partitions, in the order of the request, until `max_bytes`; at least one batch of the first."""
    answers = []
    budget = max_bytes
    at_least_one = True
    for name, reads in topics:
        partitions = []
        for read in reads:
            partition = await read.read(budget, at_least_one=at_least_one)
            budget = max(budget - len(partition.records), 0)
            at_least_one = at_least_one and not partition.records
            partitions.append(partition)
        answers.append((name, partitions))
    return answers


async def _wait(listeners: list[set[Callable[[int], None]]], missing: int, wait_s: float) -> None:
    arrival = _Arrival(missing)
    timeout = asyncio.get_running_loop().call_later(wait_s, arrival, missing)
    for each in listeners:
        each.add(arrival)
    try:
        await arrival.is_enough
    finally:
        timeout.cancel()
        for each in listeners:
            each.discard(arrival)


# --- the response ---

_FETCHED = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_NO_PREFERRED_REPLICA = int32(-1)


def encode(
    version: int, topics: Sequence[tuple[str, Sequence[FetchedPartition]]], *, error_code: int = 0
) -> list[bytes]:
    """The response's body, in parts, without a session: record bytes are not copied before the frame is joined."""
    is_flexible = version >= FLEXIBLE_VERSION
    write_string = compact_string if is_flexible else string
    write_length = compact_array_length if is_flexible else array_length
    tags = EMPTY_TAGS if is_flexible else b""
    null_array = b"\0" if is_flexible else b"\xff\xff\xff\xff"
    parts = [int32(0)]
    if version >= _SESSION_VERSION:
        parts += (int16(error_code), int32(0))
    parts.append(write_length(len(topics)))
    for name, partitions in topics:
        parts += (write_string(name), write_length(len(partitions)))
        for partition in partitions:
            index, error, watermark, _, _, stable, aborted = partition
            parts.append(_FETCHED.pack(index, error, watermark, stable))
            if version >= 5:
                parts.append(int64(partition.log_start_offset))
            if aborted is None:
                parts.append(null_array)
            else:
                parts.append(write_length(len(aborted)))
                parts += [_ABORTED.pack(*one) + tags for one in aborted]
            if version >= 11:
                parts.append(_NO_PREFERRED_REPLICA)
            size = len(partition.records)
            parts += (unsigned_varint(size + 1) if is_flexible else int32(size), partition.records, tags)
        parts.append(tags)
    parts.append(tags)
    return parts
